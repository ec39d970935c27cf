"""Configurations: the paper's values by default, complete when written, and clear about what is wrong."""

import tomllib

import pytest

from pfeddsh.config import Config
from pfeddsh.configure import build
from pfeddsh.errors import UserError
from pfeddsh.values import override, read


def test_the_defaults_are_the_papers_protocol():
    config = Config(dataset="cifar10", method="fedavg")
    assert (config.schedule, config.rounds_first, config.rounds_later) == ("80+20", 200, 100)
    assert (config.sample_fraction, config.alpha, config.later) == (0.05, 0.1, "newcomers")
    assert config.plan().clients == 100


def test_the_digits_have_a_smaller_protocol_that_can_be_overridden():
    assert Config(method="fedavg").schedule == "30+2x5"
    assert Config(method="fedavg", schedule="20+10").plan().sizes == (20, 10)


def test_a_written_configuration_is_complete_and_reads_back(tmp_path):
    config = build({"method": "fedper", "seed": 3, "later": "frozen", "data_dir": str(tmp_path), "init": "w"})
    (tmp_path / "config.toml").write_text(config.toml())
    values = read(tmp_path / "config.toml")
    assert values.keys() == Config.model_fields.keys()
    assert build(values) == config


def test_building_leaves_the_callers_values_alone():
    values = {"dataset": "cifar10", "method": "fedavg"}
    Config.model_validate(values)
    assert values == {"dataset": "cifar10", "method": "fedavg"}


@pytest.mark.parametrize(
    ("key", "meant"), [("rounds_frist", "rounds_first"), ("sample_fracton", "sample_fraction"), ("sede", "seed")]
)
def test_an_unknown_key_gets_the_nearest_valid_one(key, meant):
    with pytest.raises(UserError, match=rf"mine.toml: unknown key '{key}'; did you mean .*{meant}"):
        build({key: 1}, "mine.toml")


def test_a_key_like_no_other_gets_the_list():
    with pytest.raises(UserError, match="unknown key 'zzz'; valid: alpha, batch_size, "):
        build({"zzz": 1})


@pytest.mark.parametrize(
    ("name", "meant"), [("fedavgg", "fedavg"), ("FedPer", "fedper"), ("fedperr", "fedper"), ("lokal", "local")]
)
def test_an_unknown_method_gets_the_nearest_names(name, meant):
    with pytest.raises(UserError, match=rf"unknown method '{name}'; did you mean .*{meant}"):
        build({"method": name})


@pytest.mark.parametrize(
    "values",
    [
        {"seed": "three"},
        {"seed": -1},
        {"lr": "fast"},
        {"lr": -0.1},
        {"lr": float("nan")},
        {"rounds_first": 0},
        {"rounds_first": 2.5},
        {"sample_fraction": 0},
        {"sample_fraction": 1.5},
        {"batch_size": 1},
        {"alpha": 0},
        {"later": "never"},
        {"engine": "warp"},
        {"schedule": 20},
        {"dataset": 3},
        {"method": 3},
        {"method": ["fedavg"]},
        {"options": 3},
        {"options": ["a"]},
    ],
    ids=str,
)
def test_a_wrong_value_is_named_with_its_key(values):
    with pytest.raises(UserError, match=f"mine.toml: .*{next(iter(values))}"):
        build({"method": "fedavg", **values}, "mine.toml")


def test_all_wrong_values_are_named_at_once():
    with pytest.raises(UserError, match=r"seed: .*; lr: "):
        build({"seed": -1, "lr": -1})


def test_an_unreadable_schedule_is_refused():
    with pytest.raises(UserError, match="cannot read '20-3'"):
        build({"schedule": "80+20-3"})


def test_an_unknown_setting_of_a_method_gets_the_valid_ones():
    with pytest.raises(UserError, match=r"unknown setting 'heads'; .*prior"):
        build({"method": "local", "options": {"heads": 3}})


@pytest.mark.parametrize("text", ["seed = ", "seed 3", '[a\nb = "', "seed = 1\nseed = 2"])
def test_bad_toml_is_an_error_that_names_the_file(tmp_path, text):
    path = tmp_path / "bad.toml"
    path.write_text(text)
    with pytest.raises(UserError, match=r"bad\.toml: not valid TOML: ."):
        read(path)


def test_a_binary_file_is_not_toml(tmp_path):
    (tmp_path / "bad.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match=r"bad\.toml: not valid TOML"):
        read(tmp_path / "bad.toml")


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(UserError, match=r"none\.toml: no such file"):
        read(tmp_path / "none.toml")


def test_a_folder_in_place_of_a_file_is_named(tmp_path):
    with pytest.raises(UserError, match=str(tmp_path)):
        read(tmp_path)


def test_assignments_override_with_toml_values_and_bare_words():
    values = override({"seed": 1, "alpha": 0.5}, ["seed=7", "method=local", "lr = 1e-3", "schedule=80+20"])
    assert {key: value for key, value in values.items() if key != "options"} == {
        "seed": 7,
        "alpha": 0.5,
        "method": "local",
        "lr": 1e-3,
        "schedule": "80+20",
    }


def test_the_last_assignment_wins():
    assert override({}, ["seed=1", "seed=2"])["seed"] == 2


def test_assignments_reach_single_options_and_leave_the_original_alone():
    values = {"options": {"a": 1, "b": 2}}
    assert override(values, ["options.b=false", "options.c=x=y"])["options"] == {"a": 1, "b": False, "c": "x=y"}
    assert values == {"options": {"a": 1, "b": 2}}


def test_an_assignment_without_a_value_is_explained():
    with pytest.raises(UserError, match="--set seed: write key=value"):
        override({}, ["seed"])


def test_options_that_are_no_table_are_refused_with_or_without_assignments():
    with pytest.raises(UserError, match="options"):
        build(override(tomllib.loads("options = 3"), ["options.a=1"]))
