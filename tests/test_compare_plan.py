"""Plans: what is compared, which states runs have in common, and what is wrong with a plan that cannot be made."""

import io
import json
import sys
from pathlib import Path

import pytest
from conftest import tiny
from fabricate import results, write
from rich.console import Console

from pfeddsh.compare import summary
from pfeddsh.compare.keys import code, stops
from pfeddsh.compare.plan import make
from pfeddsh.configure import build
from pfeddsh.errors import UserError
from pfeddsh.methods.registry import METHODS
from pfeddsh.values import read

EXAMPLES = Path(__file__).parents[1] / "examples"


def keys(method: str = "fedavg", data: str = "data", **changes):
    return [stop.key for stop in stops(tiny(method, **changes), data)]


def shared(one: list[str], other: list[str]) -> int:
    """How many stops two runs have in common; they are always the first ones."""
    count = sum(a == b for a, b in zip(one, other, strict=False))
    assert one[:count] == other[:count]
    assert len({*one, *other}) == len(one) + len(other) - count
    return count


def test_a_plan_is_the_matrix_of_its_lists_and_names_say_what_differs():
    lists = {"methods": ["fedavg", "fedper"], "schedules": ["6+2x2", "6+4"], "seeds": [0, 1]}
    runs = make({**lists, "set": {"alpha": 1.0}}).runs()
    assert len({run.name for run in runs}) == 8
    assert "digits-fedper-6+2x2-seed1" in {run.name for run in runs}
    assert {run.config.alpha for run in runs} == {1.0}


def test_variants_change_any_key_and_add_to_the_options_of_all():
    variants = {"few": {"options": {"images": 8}}, "frozen": {"later": "frozen"}}
    plan = make({"methods": ["pfeddsh-hyper"], "set": {"options": {"hidden": 8}}, "variants": variants})
    few, frozen = plan.runs()
    assert few.name == "digits-pfeddsh-hyper-30+2x5-seed0-few"
    assert (few.config.options["images"], few.config.options["hidden"], few.config.later) == (8, 8, "newcomers")
    assert (frozen.config.options["images"], frozen.config.later) == (None, "frozen")


def test_a_plan_survives_its_file(tmp_path):
    plan = make({"methods": ["pfeddsh"], "variants": {"a": {"options": {"rate": 0.5}}}, "set": {"lr": 0.1}})
    (tmp_path / "compare.toml").write_text(plan.toml())
    assert make(read(tmp_path / "compare.toml")) == plan


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"methods": ["fedavgg"]}, "method fedavgg: .*did you mean fedavg"),
        ({"metods": ["fedavg"]}, "unknown key 'metods'; did you mean methods"),
        ({"alpha": 1.0}, r"unknown key 'alpha'.*\[set\]"),
        ({"set": {"alhpa": 1.0}}, "unknown key 'alhpa'; did you mean alpha"),
        ({"set": {"seed": 1}}, "seed is set by seeds at the top"),
        ({"methods": ["fedavg"], "variants": {"x": {"options": {"images": 3}}}}, "method fedavg, variant x: .*images"),
        ({"variants": {"a/b": {}}}, "variant 'a/b'"),
        ({"schedules": ["80+"]}, "cannot read"),
        ({"seeds": []}, "seeds"),
        ({"seeds": ["one"]}, "seeds"),
        ({"set": {"options": 3}}, "options must be a table"),
        ({"datasets": ["a/x", "b/x"]}, "two different runs would be named x-"),
    ],
)
def test_a_wrong_plan_is_refused_with_what_is_wrong(values, says):
    with pytest.raises(UserError, match=says):
        make(values, "here")


@pytest.mark.parametrize("name", ["table1", "ablation", "sensitivity", "investigations", "latency", "growth"])
def test_the_examples_are_plans(name):
    plan = make(read(EXAMPLES / f"{name}.toml"))
    assert {"table1": 12 * 3 * 3}.get(name, 1) <= len(plan.runs())
    assert {run.config.dataset for run in plan.runs()} == {"cifar10"}


PLANS = sorted([*EXAMPLES.glob("*.toml"), *EXAMPLES.parent.glob("results/plans/*.toml")])
TWICE = {"examples/investigations.toml", "examples/sensitivity.toml"}  # name runs of table1 and ablation again


def test_one_name_is_one_run_in_all_plans():
    """Results of all plans lie in one folder: a name must not stand for two runs, nor a run have two names there."""
    named, configured = {}, {}
    for plan in PLANS:
        for run in make(read(plan)).runs():
            assert named.setdefault(run.name, run.config) == run.config, (plan, run.name)
            if str(plan.relative_to(EXAMPLES.parent)) not in TWICE:
                name = configured.setdefault(run.config.toml(), run.name)
                assert name == run.name, plan


def test_every_kept_result_is_a_run_of_a_kept_plan():
    kept = EXAMPLES.parent / "results"
    planned = {run.name: run.config for plan in PLANS for run in make(read(plan)).runs()}
    for path in kept.glob("*.json"):
        results, config = json.loads(path.read_text()), planned[path.stem]
        told = {"options": results["options"], "device": config.device, **results["protocol"]}  # later keys: defaults
        assert build({**config.model_dump(include={"dataset", "method", "schedule", "seed"}), **told}) == config, path


# What is shared


def test_schedules_share_their_common_beginning():
    assert shared(keys(schedule="6+2x2"), keys(schedule="6+4")) == 2  # the rounds of step 1, and its end
    assert shared(keys(schedule="6+2x2"), keys(schedule="6+2+1+1")) == 3


def test_everything_a_state_depends_on_is_in_its_key():
    for change in (
        {"seed": 1}, {"alpha": 1.0}, {"lr": 0.5}, {"rounds_first": 7}, {"partition": "iid"}, {"batch_size": 8},
        {"momentum": 0.5}, {"local_epochs": 2}, {"sample_fraction": 0.5}, {"schedule": "5+3+2"}, {"schedule": "6+6"},
        {"hold_out": 0.2}, {"sampling": "round-robin"},
    ):  # fmt: skip
        assert shared(keys(), keys(**change)) == 0, change
    assert shared(keys(), keys(data="other data")) == 0
    assert shared(keys("fedavg"), keys("fedper")) == 0
    assert shared(keys("pefll"), keys("odpfl-hn")) == 0, "the same settings, another class"


def test_what_acts_after_step_1_does_not_count_in_it():
    assert shared(keys(), keys(rounds_later=9)) == 2
    assert shared(keys(), keys(later="frozen")) == 2
    assert shared(keys(), keys(existing="keep")) == 1, "what clients keep, they keep from the end of step 1 on"
    assert shared(keys(existing="guard"), keys(existing="guard", evidence="loss")) == 2
    assert shared(keys("pfedhn"), keys("pfedhn-embed-only")) == 1
    assert shared(keys("fedclass"), keys("fedclass", options={"beta": 1.0})) == 1
    assert shared(keys("fedclass"), keys("fedclass-local-head")) == 0


def test_ablations_of_pfeddsh_share_the_rounds_of_step_1():
    for other in ("joint", "pfeddsh-unguarded", "pfeddsh-replay"):
        assert shared(keys("pfeddsh"), keys(other)) == 1, other
    for other in ("pfeddsh-hyper-snapshot", "pfeddsh-hyper-unprotected"):
        assert shared(keys("pfeddsh-hyper"), keys(other)) == 1, other
    for other in ("pfeddsh-deviation", "pfeddsh-hyper", "pfeddsh-hyper-gate", "pfeddsh-paper"):
        assert shared(keys("pfeddsh"), keys(other)) == 0, other
    again = keys("pfeddsh-unguarded", existing="guard", options={"replay": "common"})
    assert shared(keys("pfeddsh-replay"), again) == 4, "a name is no difference"


def test_where_and_how_a_run_is_made_does_not_count(tmp_path):
    assert keys(engine="pool", workers=7, data_dir=tmp_path) == keys()


def test_every_setting_of_every_method_counts_after_step_1():
    """A setting that is left out of `first_rounds` must still be in the key of what comes later."""
    for name in METHODS:
        config = tiny(name)
        for option, value in config.options.items():
            other = "changed" if option != "protection" else "none" if value != "none" else "snapshot"
            changed = config.model_copy(update={"options": {**config.options, option: other}})
            before, after = stops(config, "data"), stops(changed, "data")
            assert before[1].key != after[1].key, (name, option)


def test_estimates_outlive_seeds_but_not_other_settings():
    one, other = stops(tiny(seed=0), "data"), stops(tiny(seed=1), "data")
    assert [stop.like for stop in one] == [stop.like for stop in other]
    assert one[0].like != stops(tiny(rounds_first=9), "data")[0].like


def test_the_code_is_part_of_the_key(monkeypatch):
    before = keys()
    monkeypatch.setattr(sys.modules[stops.__module__], "code", lambda: "edited")
    assert shared(before, keys()) == 0
    assert code() == code()


def test_a_narrow_terminal_shows_every_number_whole(tmp_path):
    lists = {"datasets": ["cifar100", "tiny-imagenet"], "methods": ["fedavg-prior-finetune", "pfeddsh-counted"]}
    runs = make({**lists, "schedules": ["8+2x3"]}).runs()
    for run in runs:
        config = run.config
        found = results(config.method, config.schedule, dataset=config.dataset) | {"pa_zero_shot": [None, 3.25, -12.5]}
        write(tmp_path / run.name, found)
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(summary.table(runs, tmp_path))
    text = console.export_text()
    assert "…" not in text and text.count("-12.50") == len(runs)
