"""PA, RI and their kin against an example computed by hand."""

import pytest

from pfeddsh.results.metrics import completed, sampled_adaptation, summary

# Five clients: 0 and 1 join in step 1, 2 and 3 in step 2, 4 in step 3. Client 3 was turned away.
BATCH = [1, 1, 2, 2, 3]
LOCAL = [70.0, 60.0, 50.0, 40.0, 80.0]
ACC = [
    [75.0, 62.0, None, None, None],
    [78.0, 55.0, 58.0, None, None],
    [77.0, 61.0, 56.5, None, 79.0],
]


def test_the_example():
    result = summary(ACC, BATCH, LOCAL)
    assert result["pa"] == pytest.approx([3.5, 8.0, -1.0])  # (5 + 2) / 2; 8, client 3 left out; -1
    assert result["pa_mean"] == pytest.approx(3.5)  # of the later steps: (8 - 1) / 2
    assert result["ri"][0] is None
    assert result["ri"][1:] == pytest.approx([-2.0, 3.5 / 3])  # (3 - 7) / 2; (-1 + 6 - 1.5) / 3
    assert result["ri_last"] == pytest.approx(3.5 / 3)
    assert result["ri_cumulative"] == pytest.approx(0.5)  # (2 - 1) / 2
    assert result["worst_drop"] == pytest.approx(7.0)  # client 1 in step 2
    assert result["acc_end_mean"] == pytest.approx(68.375)  # (77 + 61 + 56.5 + 79) / 4
    assert result["lost_share"] == [None, 50.0, 0.0]  # client 1 of two; in step 3 nobody lost more than 1.5


def test_a_single_step_has_pa_but_no_ri():
    result = summary(ACC[:1], BATCH, LOCAL)
    assert result == {
        "pa": [3.5],
        "ri": [None],
        "pa_mean": 3.5,
        "ri_last": None,
        "ri_cumulative": None,
        "worst_drop": 0.0,
        "acc_end_mean": 68.5,
        "lost_share": [None],
    }


def test_two_points_are_not_yet_a_loss():
    acc = [[50.0, 50.0, 50.0, 50.0, None], [48.0, 47.99, 60.0, 50.0, 10.0]]
    assert summary(acc, [1, 1, 1, 1, 2], [0.0] * 5)["lost_share"] == [None, 25.0]


def test_newcomers_sampled_less_than_three_times_are_left_out():
    acc = [[60.0, None, None, None], [60.0, 90.0, 30.0, 70.0]]
    local = [50.0, 50.0, 50.0, 50.0]
    assert sampled_adaptation(acc, [1, 2, 2, 2], local, [9, 3, 2, 4]) == [10.0, 30.0]
    assert sampled_adaptation(acc, [1, 2, 2, 2], local, [9, 0, 0, 2]) == [10.0, None]


def test_results_of_an_older_version_are_completed_but_not_altered():
    old = {"acc": ACC, "batch": BATCH, "local": LOCAL, "worst_drop": 123.0}
    result = completed(old)
    assert result["acc_end_mean"] == pytest.approx(68.375)
    assert result["worst_drop"] == 123.0, "what a file says stays"


def test_a_step_nobody_could_join_has_no_pa():
    result = summary([[75.0, None], [76.0, None]], [1, 2], [70.0, 60.0])
    assert result["pa"] == [5.0, None]
    assert result["pa_mean"] is None
    assert result["ri"] == [None, 1.0]


def test_controls_that_are_not_there_yet_are_left_out():
    assert summary(ACC, BATCH, [70.0, None, None, None, None])["pa"] == [5.0, None, None]


def test_nobody_worse_means_no_drop():
    assert summary([[50.0, None], [60.0, 10.0]], [1, 2], [0.0, 0.0])["worst_drop"] == 0.0


def test_accuracies_equal_to_the_control_give_zero_exactly():
    odd = [100 / 3, 200 / 7]
    result = summary([odd, odd], [1, 1], odd)
    assert result["pa"] == [0.0, None]
    assert (result["ri_last"], result["ri_cumulative"], result["worst_drop"]) == (0.0, 0.0, 0.0)
