"""Reading runs: what is found, what is refused and why, what may stand beside what."""

import json
import shlex
from pathlib import Path

import pytest
from fabricate import NEW, results, write

from pfeddsh.config import Config
from pfeddsh.errors import UserError
from pfeddsh.methods import registry
from pfeddsh.report.grouping import group_runs
from pfeddsh.report.read import gather
from pfeddsh.report.repeat import recipe

OURS = Path(__file__).parent.parent / "results"


def test_every_result_of_the_repository_follows_the_contract():
    runs, problems = gather([OURS])
    assert problems == []
    assert len(runs) == len(list(OURS.glob("*.json")))


def test_a_run_a_folder_of_runs_and_a_file_are_found_once(tmp_path):
    one = write(tmp_path / "all" / "one", results("fedper"))
    two = write(tmp_path / "all" / "deeper" / "two", results("fedavg"))
    runs, problems = gather([one.parent, tmp_path / "all", two])
    assert problems == []
    assert sorted(run.results.method for run in runs) == ["fedavg", "fedper"]


def altered(**changes):
    return {**results(), **changes}


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("{", "Invalid JSON"),
        ("", "Invalid JSON"),
        ("[1, 2]", "not a results.json of pfeddsh"),
        ('{"accuracy": 0.9}', "schema: Field required"),
        (altered(schema=2), "schema: Input should be 1"),
        (altered(pa_mean=50.0), "pa_mean is 50.0 but the accuracies give"),
        (altered(ri=[None, 1.0]), "ri has 2 steps instead of 3"),
        (altered(schedule="8+2"), "batch does not follow the schedule"),
        (altered(schedule="eight"), "cannot read 'eight'"),
        (altered(local=[170.0] * 14), "from 0 to 100"),
        (altered(acc=[[1.0]] * 3), "one number from 0 to 100 per client"),
        (json.dumps(altered(worst_drop=float("nan"))), "worst_drop"),
        (altered(protocol={"alpha": [1]}), "protocol.alpha"),
        (altered(acc_end_mean=99.0), "acc_end_mean is 99.0 but the accuracies give"),
        (altered(lost_share=[None, 0.0, 0.0]), "lost_share is"),
        (altered(visits=[3]), "visits is not one number per client"),
        (altered(visits=[0] * 14), "pa_sampled is"),
        ("[" * 100_000, "not a results.json of pfeddsh"),
    ],
    ids=range(18),
)
def test_a_foreign_or_broken_file_is_named_with_the_reason_and_the_rest_is_read(tmp_path, content, reason):
    write(tmp_path / "good", results())
    bad = write(tmp_path / "bad", content)
    runs, problems = gather([tmp_path])
    assert [run.path.parent.name for run in runs] == ["good"]
    assert len(problems) == 1
    assert problems[0].startswith(f"{bad} was left out: ")
    assert reason in problems[0]


def test_a_file_of_an_older_version_gets_the_fields_it_lacks(tmp_path):
    new = results("fedper", "8+2x3")
    old = {key: value for key, value in new.items() if key not in NEW}
    runs, problems = gather([write(tmp_path / "old", old), write(tmp_path / "new", new)])
    assert problems == []
    for name in NEW:
        assert getattr(runs[0].results, name) == getattr(runs[1].results, name) == new[name], name
    unknown = {key: value for key, value in old.items() if key != "protocol"}
    run = gather([write(tmp_path / "unknown", unknown)])[0][0].results
    assert (run.visits, run.pa_sampled) == (None, None), "without its protocol nobody knows who was sampled"
    assert run.acc_end_mean == new["acc_end_mean"]


def test_a_half_finished_run_is_named_with_how_to_finish_it(tmp_path):
    write(tmp_path / "done", results())
    half = tmp_path / "half"
    half.mkdir()
    (half / "config.toml").write_text("seed = 1")
    _, problems = gather([tmp_path])
    assert problems == [f"{half} is not finished and was left out; `pfeddsh resume {half}` finishes it"]


def test_nothing_readable_is_an_error_that_says_what_was_tried(tmp_path):
    (tmp_path / "empty").mkdir()
    bad = write(tmp_path / "bad", "{}")
    with pytest.raises(UserError) as error:
        gather([tmp_path / "empty", bad.parent, tmp_path / "missing"])
    assert f"{tmp_path / 'empty'} holds no runs" in str(error.value)
    assert f"{bad} was left out" in str(error.value)
    assert f"{tmp_path / 'missing'} does not exist" in str(error.value)


def arranged(tmp_path, *contents):
    for number, content in enumerate(contents):
        write(tmp_path / f"{number:02d}", content)
    runs, problems = gather([tmp_path])
    assert problems == []
    return group_runs(runs)


def test_seeds_are_put_together_and_missing_ones_are_said(tmp_path):
    groups, problems = arranged(
        tmp_path, results("fedper", seed=0), results("fedper", seed=1), results("fedavg", seed=1)
    )
    assert {cell.label: cell.seeds for cell in groups[0].cells} == {"fedper": "0, 1", "fedavg": "1"}
    assert len(problems) == 1
    assert "seeds are missing for fedavg (0)" in problems[0]


def test_protocols_are_kept_apart_and_said(tmp_path):
    groups, problems = arranged(tmp_path, results(), results("fedavg"), results(rounds_first=50), results(alpha=0.5))
    assert sorted(len(group.cells) for group in groups) == [1, 1, 2]
    assert "runs on cifar10 follow 3 protocols; they are kept apart and not compared" in problems


def test_the_protocol_of_an_older_run_is_read_from_its_configuration(tmp_path):
    old = {key: value for key, value in results(alpha=0.5).items() if key != "protocol"}
    path = write(tmp_path / "old", old)
    assert gather([path])[0][0].protocol is None
    path.with_name("config.toml").write_text("alpha = 0.5\nrounds_first = 3\nseed = 1")
    assert gather([path])[0][0].protocol == {"alpha": 0.5, "rounds_first": 3}


def test_datasets_are_separate_groups_without_a_warning(tmp_path):
    groups, problems = arranged(tmp_path, results(), results(dataset="cifar100"))
    assert [group.setting.dataset for group in groups] == ["cifar10", "cifar100"]
    assert problems == []


def test_other_images_under_the_same_name_are_kept_apart(tmp_path):
    other = results("fedavg") | {"environment": {"data": "something else"}}
    groups, problems = arranged(tmp_path, results(), other)
    assert len(groups) == 2
    assert any("different images" in problem for problem in problems)


def test_schedules_written_differently_are_the_same(tmp_path):
    groups, _ = arranged(tmp_path, results("fedper", "8+2x3"), results("fedavg", "8+3+3"))
    assert [group.schedule for group in groups] == ["8+2x3"]


def test_settings_make_a_variant_and_who_trains_later_is_one(tmp_path):
    groups, _ = arranged(
        tmp_path,
        results("pfeddsh"),
        results("pfeddsh", options={"prior": False}),
        results("fedavg", later="frozen"),
        results("joint"),
        results("pfeddsh-hyper-gate"),
    )
    group = groups[0]
    assert [cell.label for cell in group.cells] == [
        "joint", "fedavg, later=frozen", "pfeddsh", "pfeddsh, prior=false", "pfeddsh-hyper-gate",
    ]  # fmt: skip
    assert [cell.label for cell in group.contest] == ["fedavg, later=frozen", "pfeddsh"]
    assert [cell.label for cell in group.references] == ["joint"]
    assert [cell.label for cell in group.ablations] == ["pfeddsh", "pfeddsh-hyper-gate"]
    assert [[cell.label for cell in several] for several in group.sensitivity] == [["pfeddsh", "pfeddsh, prior=false"]]


def test_the_command_that_repeats_a_run_sets_keys_that_a_run_has(tmp_path):
    groups, _ = arranged(
        tmp_path, results("fedavg", later="frozen"), results("fedrep", existing="guard"),
        results("pfeddsh", options={"prior": False}),
    )  # fmt: skip
    for cell in groups[0].cells:
        words = shlex.split(recipe(cell).command)
        given = [words[i + 1].split("=") for i, word in enumerate(words) if word == "--set"]
        assert given, cell.label
        options = registry.METHODS[cell.variant.method].options({})
        known = Config.model_fields.keys() | {f"options.{name}" for name in options}
        assert {name for name, _ in given} <= known, cell.label


def test_a_method_we_do_not_know_is_shown_like_any_other(tmp_path):
    groups, _ = arranged(tmp_path, results() | {"method": "hers", "options": {"depth": 3}})
    assert [cell.label for cell in groups[0].contest] == ["hers, depth=3"]


def test_two_runs_that_claim_to_be_the_same_are_said(tmp_path):
    other = results("fedavg")
    groups, problems = arranged(tmp_path, results("fedper"), results("fedper"), results("fedper", drift=1.0), other)
    assert sum(len(cell.runs) for cell in groups[0].cells) == 2
    assert ["say the same" in p for p in problems] == [True, False]
    assert "disagree" in problems[1]


@pytest.mark.parametrize(("points", "paired"), [(1, False), (0.05, True)])
def test_runs_with_other_clients_are_not_paired(tmp_path, points, paired):
    """Clients that differ by what another processor rounds are the same ones."""
    moved = results("fedavg")
    moved["local"] = [value - points for value in moved["local"]]
    for name in ("pa", "pa_mean", "pa_sampled"):
        value = moved[name]
        moved[name] = [v + points for v in value] if isinstance(value, list) else value + points
    _, problems = arranged(tmp_path, results("fedper"), moved)
    assert any("they are not paired" in problem for problem in problems) is not paired


def test_of_a_run_that_looked_at_a_sample_everyone_is_what_it_estimated(tmp_path):
    sampled = results("fedper") | {"acc_end_mean": 61.5, "evaluated": {"acc_everyone": [50.0, 61.5]}}
    groups, problems = arranged(tmp_path, sampled)
    (run,) = groups[0].cells[0].runs
    assert (run.results.acc_end_mean, problems) == (61.5, [])


@pytest.mark.parametrize("evaluated", [{}, {"acc_everyone": []}, {"acc_everyone": "all"}, {"acc_everyone": [50.0]}])
def test_an_estimate_that_is_none_is_refused(tmp_path, evaluated):
    write(tmp_path / "run", results("fedper") | {"acc_end_mean": 61.5, "evaluated": evaluated})
    with pytest.raises(UserError, match=r"evaluated|acc_end_mean"):
        gather([tmp_path])
