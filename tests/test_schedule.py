"""Who joins when and who is sampled when: a function of the seed and the schedule so far, of nothing else."""

import pytest
from conftest import BASIC

from pfeddsh.config import Config
from pfeddsh.errors import UserError
from pfeddsh.live.coordinator.schedule import LiveSchedule
from pfeddsh.schedule import Schedule, parse


def plan(text="80+20", seed=0, **changes):
    settings = {"rounds_first": 200, "rounds_later": 100, "sample_fraction": 0.05, "lr": 0.01}
    return Schedule(parse(text), seed, **{**settings, **changes})


def cohorts(schedule, step):
    return [schedule.cohort(step, r) for r in range(schedule.rounds(step))]


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("80+20", (80, 20)),
        ("80+4x5", (80, 5, 5, 5, 5)),
        ("80+10x2", (80, *[2] * 10)),
        (" 30 + 2x5 ", (30, 5, 5)),
        ("7", (7,)),
        ("2x3+1", (3, 3, 1)),
    ],
)
def test_a_schedule_is_read_as_batch_sizes(text, sizes):
    assert parse(text) == sizes


@pytest.mark.parametrize(
    "text", ["", "80+", "+20", "80++20", "80-20", "80+x5", "80+4x", "80+0", "0x5", "3x0", "1.5", "-3"]
)
def test_an_unreadable_schedule_is_quoted_with_an_example(text):
    with pytest.raises(UserError, match=r"cannot read .* write for instance 80"):
        parse(text)


def test_everyone_joins_exactly_once():
    schedule = plan("80+4x5")
    assert sorted(k for batch in schedule.batches for k in batch) == list(range(100))
    assert [len(batch) for batch in schedule.batches] == [80, 5, 5, 5, 5]
    assert schedule.onboarded(3) == tuple(sorted(schedule.batch(1) + schedule.batch(2) + schedule.batch(3)))


def test_who_comes_early_is_not_a_matter_of_number():
    assert plan().batch(2) != tuple(range(80, 100))


@pytest.mark.parametrize("other", ["80+4x5", "80+10x2"])
def test_schedules_share_their_first_step(other):
    one, two = plan("80+20"), plan(other)
    assert one.batch(1) == two.batch(1)
    assert cohorts(one, 1) == cohorts(two, 1)
    assert [one.rate(1, r) for r in range(200)] == [two.rate(1, r) for r in range(200)]


def test_schedules_share_their_steps_up_to_where_they_part():
    one, two = plan("80+5+5+10"), plan("80+5+5+2x5")
    for step in (1, 2, 3):
        assert one.batch(step) == two.batch(step)
        assert cohorts(one, step) == cohorts(two, step)
    assert one.batch(4) != two.batch(4)


def test_all_methods_see_the_same_cohorts():
    plans = [Config(method=method).plan() for method in BASIC]
    assert plans[0] == plans[1] == plans[2]


def test_another_seed_draws_another_schedule():
    one, two = plan(seed=0), plan(seed=1)
    assert one.batch(1) != two.batch(1)
    assert cohorts(one, 1) != cohorts(two, 1)
    assert cohorts(one, 2) == cohorts(plan(seed=0), 2)


@pytest.mark.parametrize(("fraction", "count"), [(0.05, 4), (0.01, 1), (0.001, 1), (0.019, 2), (1.0, 80)])
def test_a_cohort_is_the_rounded_fraction_of_the_batch_and_at_least_one(fraction, count):
    schedule = plan(sample_fraction=fraction)
    for cohort in cohorts(schedule, 1)[:20]:
        assert len(set(cohort)) == count
        assert set(cohort) <= set(schedule.batch(1))


def test_later_steps_sample_newcomers_only():
    schedule = plan("80+4x5", sample_fraction=0.4)
    assert {k for cohort in cohorts(schedule, 3) for k in cohort} == set(schedule.batch(3))


def test_everyone_means_that_existing_clients_are_sampled_too():
    schedule = plan("80+20", sample_fraction=0.4, everyone=True)
    assert {k for cohort in cohorts(schedule, 2) for k in cohort} == set(range(100))
    assert cohorts(schedule, 1) == cohorts(plan("80+20", sample_fraction=0.4), 1)


@pytest.mark.parametrize("everyone", [False, True])
def test_the_control_repeats_the_visits_of_the_clients_own_step(everyone):
    schedule, newcomers = plan("80+4x5", everyone=everyone), plan("80+4x5")
    for step in (1, 2):
        for client in schedule.batch(step)[:5]:
            sampled = [r for r, cohort in enumerate(cohorts(newcomers, step)) if client in cohort]
            assert schedule.visits(step, client) == sampled


def test_the_learning_rate_decays_within_a_step_and_restarts_with_the_next():
    schedule = plan(lr=0.4, rounds_first=10, rounds_later=4)
    rates = [schedule.rate(1, r) for r in range(10)]
    assert rates[0] == pytest.approx(0.4)
    assert rates[5] == pytest.approx(0.2)
    assert rates == sorted(rates, reverse=True)
    assert 0 < rates[-1] < 0.02
    assert [schedule.rate(2, 0), schedule.rate(2, 2)] == pytest.approx([0.4, 0.2])


# Everyone in turn


@pytest.mark.parametrize(("text", "fraction"), [("80+20", 0.05), ("80+4x5", 0.3), ("7+3", 0.4), ("5+1", 1.0)])
def test_in_turn_nobody_is_more_than_one_visit_behind(text, fraction):
    schedule = plan(text, sample_fraction=fraction, sampling="round-robin")
    for step in schedule.steps[:2]:
        visits = dict.fromkeys(schedule.batch(step), 0)
        sizes = set()
        for cohort in cohorts(schedule, step):
            assert len(set(cohort)) == len(cohort)
            sizes.add(len(cohort))
            for k in cohort:
                visits[k] += 1
            assert max(visits.values()) - min(visits.values()) <= 1
        assert sizes == {len(plan(text, sample_fraction=fraction).cohort(step, 0))}


def test_every_pass_has_an_order_of_its_own_and_so_has_every_seed():
    one, other = (plan("8+2", seed, sample_fraction=0.25, sampling="round-robin") for seed in (0, 1))
    assert cohorts(one, 1)[:4] != cohorts(one, 1)[4:8]
    assert cohorts(one, 1) != cohorts(other, 1)


def test_schedules_in_turn_share_their_beginning_and_everyone_is_everyone():
    one, two = (plan(text, sampling="round-robin") for text in ("80+20", "80+4x5"))
    assert cohorts(one, 1) == cohorts(two, 1)
    everyone = plan("80+20", sampling="round-robin", everyone=True)
    assert {k for cohort in cohorts(everyone, 2) for k in cohort} == set(range(100))
    client = everyone.batch(2)[0]
    assert everyone.visits(2, client) == [r for r, cohort in enumerate(cohorts(one, 2)) if client in cohort]


def test_a_live_federation_draws_its_turns_as_a_simulated_one():
    config = Config(method="fedavg", sampling="round-robin", sample_fraction=0.4)
    live = LiveSchedule.create(config, [(0, 1, 2, 3, 4)])
    assert {k for round in range(3) for k in live.cohort(1, round)} == {0, 1, 2, 3, 4}
    live.taken.append((5, 6))
    assert set(live.cohort(2, 0)) | set(live.cohort(2, 1)) == {5, 6}
