"""The tables in README and docs: made from the runs in results/, and as the script makes them now."""

import os
import runpy
import shutil
import subprocess
from pathlib import Path

import pytest
from fabricate import results, write

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def script():
    """Named by its path, it would not find its neighbour by itself."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "results"))
        yield runpy.run_path(str(ROOT / "results" / "tables.py"))


def rows(text):
    lines = [[part.strip() for part in line.strip("|").split("|")] for line in text.splitlines()]
    return lines[0], lines[2:]


def test_methods_are_ordered_by_everyone_at_the_end_and_the_best_is_bold(script, tmp_path):
    for method, drift in {"fedavg": -9.0, "fedper": 3.0, "fedrep": -4.0}.items():
        write(tmp_path / method, results(method, "80+20", drift=drift))
    headings, lines = rows(script["main_table"](script["Runs"](tmp_path), "80+20"))
    assert [line[0] for line in lines] == ["FedPer", "FedRep", "FedAvg"]
    best = results("fedper", "80+20", drift=3.0)
    found = dict(zip(headings, lines[0], strict=True))
    assert found["everyone at the end, %"] == f"**{best['acc_end_mean']:.1f}**"
    assert found["lost > 2 points, %"] == "0"
    assert found["3+ visits"] == f"{best['pa_sampled'][1]:+.1f}"
    assert "zero-shot" not in headings


def test_a_column_that_says_nothing_new_is_left_out(script, tmp_path):
    write(tmp_path / "run", results("pefll", "8+2x3") | {"pa_zero_shot": [-60.0, 1.0, 3.0]})
    headings, lines = rows(script["main_table"](script["Runs"](tmp_path), "8+2x3"))
    assert "3+ visits" not in headings, "everyone was sampled often"
    assert dict(zip(headings, lines[0], strict=True))["zero-shot"] == "+2.0"


def test_frozen_and_guarded_methods_have_a_row_other_options_their_own_table_and_no_oracle_is_bold(script, tmp_path):
    write(tmp_path / "a", results("central", "80+20", drift=9.0))
    write(tmp_path / "b", results("joint", "80+20", drift=5.0))
    write(tmp_path / "c", results("pfedhn-embed-only", "80+20", drift=0.0))
    write(tmp_path / "d", results("fedavg-prior", "80+20", drift=-1.0, existing="guard"))
    write(tmp_path / "e", results("fedper", "80+20", drift=-20.0, later="frozen"))
    write(tmp_path / "f", results("pfeddsh-hyper", "80+20"))
    write(tmp_path / "g", results("fedrep", "80+20", drift=-21.0, options={"head_epochs": 1}))
    runs = script["Runs"](tmp_path)
    _, lines = rows(script["main_table"](runs, "80+20"))
    assert [line[0] for line in lines] == [
        "*one model on pooled data, the ceiling*", "*pFedDSH, everyone retrains, an oracle*",
        "pFedHN, embeddings only", "FedAvg + prior, guard", "FedPer, frozen after step 1",
    ]  # fmt: skip
    assert [line[1].startswith("**") for line in lines] == [False, False, True, False, False]
    _, lines = rows(script["main_table"](runs, "80+20", variants=True))
    assert [line[0] for line in lines] == ["FedRep, head_epochs=1"]


def test_a_variant_that_is_ahead_of_pfeddsh_stands_in_the_main_table(script, tmp_path):
    write(tmp_path / "ours", results("pfeddsh", "80+20", drift=0.0))
    write(tmp_path / "ahead", results("fedper", "80+20", drift=2.0, options={"statistics": "fresh"}))
    _, lines = rows(script["main_table"](script["Runs"](tmp_path), "80+20"))
    assert [line[0] for line in lines] == ["FedPer, fresh statistics", "**pFedDSH**"]


def test_who_is_ahead_on_its_only_seed_but_not_of_pfeddsh_there_is_not_bold(script, tmp_path):
    for seed, drift in enumerate((3.0, -9.0)):
        write(tmp_path / f"ours{seed}", results("pfeddsh", "80+20", seed, drift=drift))
    write(tmp_path / "lucky", results("fedper", "80+20", 0, drift=2.0))
    _, lines = rows(script["main_table"](script["Runs"](tmp_path), "80+20"))
    assert [(line[0], line[1].startswith("**")) for line in lines] == [("FedPer", False), ("**pFedDSH**", True)]


def test_pfeddsh_is_tested_against_any_setting_of_the_others_and_corrected_over_places(script, tmp_path):
    def tested(name, frozen, places):
        for seed in range(3):
            for place in places:
                write(tmp_path / name / f"{place}ours{seed}", results("pfeddsh", place, seed, drift=9.0 + seed))
                write(tmp_path / name / f"{place}other{seed}", results("fedper", place, seed, drift=2.0))
            if frozen:
                write(tmp_path / name / f"frozen{seed}", results("fedper", "80+20", seed, drift=5.0, later="frozen"))
        return next(row for row in script["verdicts"](script["Runs"](tmp_path / name)) if row[0] == "CIFAR-10, 80+20")

    plain = tested("plain", False, ["80+20"])
    frozen = tested("frozen", True, ["80+20"])
    assert (plain[1], frozen[1]) == ("FedPer", "FedPer, frozen after step 1")
    assert float(frozen[2]) < float(plain[2])
    both = tested("both", True, ["80+20", "20+80"])
    assert both[1:4] == frozen[1:4] and float(both[5]) > float(frozen[5]), "two places: p over seeds is corrected"


def test_the_parts_of_a_document_are_replaced_one_by_one(script):
    mark, end = "<!-- results/tables.py -->", "<!-- end -->"
    page = f"a\n{mark}\nold\n{end}\nb\n{mark}\n{end}\nc\n"
    made = script["between"](page, "first\n<!-- next -->\nsecond\n")
    assert made == f"a\n{mark}\nfirst\n{end}\nb\n{mark}\nsecond\n{end}\nc\n"
    with pytest.raises(ValueError, match="shorter"):
        script["between"](page, "only one")


def test_the_overview_names_the_nearest_control_and_rival_on_shared_seeds(script, tmp_path):
    for seed in range(2):
        write(tmp_path / f"ours{seed}", results("pfeddsh", "80+20", seed, drift=9.0))
        write(tmp_path / f"control{seed}", results("fedavg-prior", "80+20", seed, drift=4.0))
    write(tmp_path / "far", results("ditto-prior", "80+20", 1, drift=1.0))
    write(tmp_path / "rival", results("fedrep", "80+20", 1, drift=2.0))
    runs = script["Runs"](tmp_path)
    line = rows(script["overview"](runs))[1][0]
    mean, lead, name = script["nearest"](runs, ["fedrep"], "80+20")
    assert name == "FedRep" and line[3] == f"{mean:.1f} FedRep ({lead:+.1f})"
    assert mean == runs.values("end", "fedrep", "80+20")[1]
    assert line[0] == "CIFAR-10, 80+20" and "FedAvg + prior (+" in line[2] and line[4] == ""


def test_runs_that_cannot_be_paired_are_a_fault(script, tmp_path):
    moved = results("fedavg", "80+20", seed=7)
    moved["local"] = [value - 1 for value in moved["local"]]
    for name in ("pa", "pa_mean", "pa_sampled"):
        moved[name] = [v + 1 for v in moved[name]] if isinstance(moved[name], list) else moved[name] + 1
    write(tmp_path / "a", moved)
    for method in ("fedper", "fedrep"):
        write(tmp_path / method, results(method, "80+20", seed=7))
    runs = script["Runs"](tmp_path)
    assert script["faults"](runs) == ["cifar10, 80+20, seed 7: runs of other clients in one table; make them again"]
    assert any("not paired" in problem for problem in runs.problems)


def test_whoever_is_ahead_of_pfeddsh_is_told(script, tmp_path):
    for seed in range(2):
        write(tmp_path / f"ours{seed}", results("pfeddsh", "80+20", seed, drift=-3.0))
        write(tmp_path / f"worse{seed}", results("fedavg", "80+20", seed, drift=-30.0))
    write(tmp_path / "better", results("fedper", "80+20", 1, drift=9.0))
    write(tmp_path / "oracle", results("central", "80+20", drift=20.0))
    runs = script["Runs"](tmp_path)
    ((place, everyone, _, first_batch),) = script["behind"](runs)
    assert place == "CIFAR-10, 80+20" and "FedPer (+" in everyone and "1 seed)" in everyone
    assert "FedAvg (" not in everyone + first_batch and "pooled" not in everyone + first_batch
    assert "FedAvg, existing clients keep theirs (+" in everyone
    assert script["losers"](runs)[0].startswith("CIFAR-10, 80+20 ")


def test_seeds_that_settings_were_chosen_on_stand_apart(script, tmp_path):
    write(tmp_path / "a", results("fedper", "80+20", 0))
    write(tmp_path / "b", results("fedper", "80+20", 100))
    reported, tuning = script["Runs"](tmp_path), script["Runs"](tmp_path, tuning=True)
    assert [reported.cell("fedper", "80+20").seeds, tuning.cell("fedper", "80+20").seeds] == ["0", "100"]


def test_a_number_that_no_row_has_cannot_be_told(script):
    assert script["lookup"].tuned("fedavg", "statistics=own") < script["lookup"].tuned("fedavg")
    with pytest.raises(LookupError, match=r"0 rows of tuning\.csv"):
        script["lookup"].tuned("fedavg", "statistics=none")


def test_the_demo_on_several_seeds_is_in_order_and_says_who_is_ahead_on_which_seed(script, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    row = runpy.run_path(str(ROOT / "benchmarks" / "demo.py"))["row"]
    drifts = {"pfeddsh": (3.0, -1.0), "fedavg-prior": (-4.0, 0.0), "fedper": (-9.0, -9.0)}
    drifts |= {method: (-20.0, -20.0) for method in ("fedavg", "local")}
    runs = [
        results(method, "80+20", seed, drift=drift)
        | {"environment": {"revision": "abc"}, "pa_zero_shot": [None, None] if method == "fedper" else [-60.0, 1.0]}
        for method, both in drifts.items()
        for seed, drift in enumerate(both)
    ]
    kept = [row(run) for run in runs]
    assert kept[0]["revision"] == "abc" and kept[4]["at_once"] == ""
    monkeypatch.setattr(script["demo_seeds"], "rows", lambda name: kept)
    found = script["demo_seeds"].found()
    assert list(found)[:3] == ["pfeddsh", "fedavg-prior", "fedper"]
    ours, prior = found["pfeddsh"], found["fedavg-prior"]
    assert ours.ahead(prior) == [0] and prior.ahead(ours) == [1] and found["fedper"].ahead(ours) == []
    assert prior.serves_at_once and not found["fedper"].serves_at_once
    assert prior.change < 0 < ours.change and prior.spread > 0


def test_the_federation_on_one_machine_is_told_as_it_ended(script, monkeypatch):
    """Also a seed that went badly."""
    at = {"alone": "80", "at_once": "90", "after": "91", "earlier_before": "90", "earlier": "3"}
    story = [
        at | {"seed": "0", "earlier_after": "92", "accepted": "2"},
        at | {"seed": "1", "earlier_after": "89", "accepted": "1"},
        at | {"seed": "2", "earlier_after": "90", "accepted": "0", "after": "90"},
    ]
    inside, real = script["rendered"].__globals__, script["rendered"].__globals__["rows"]
    monkeypatch.setitem(inside, "rows", lambda name, **by: story if name == "story.csv" else real(name, **by))
    told = script["rendered"](script["Runs"](), "operations.md.j2")
    assert "With seed 0 the mean of the earlier sites rises most, by 2.0 points." in told
    assert "With seed 1 the earlier sites end lower." in told and "With seed 2 the earlier sites declined." in told
    assert "With seed 2 the late sites gained nothing" in told and "| 2 of 3 |" in told


def test_what_was_measured_on_several_machines_stands_in_no_table_together(script, monkeypatch):
    table = [{"benchmark": "peers", "case": name, "machine": f"{cores} cores"} for name, cores in (("a", 2), ("b", 4))]
    monkeypatch.setattr(script["lookup"], "rows", lambda _, benchmark: table)
    with pytest.raises(LookupError, match="of 2 machines"):
        script["lookup"].machine("peers")
    del table[1]
    assert script["lookup"].machine("peers") == "2 cores"


def test_the_technical_report_is_one_file():
    page = runpy.run_path(str(ROOT / "results" / "paper.py"))["page"]
    made = page("# A title\n\n![growth](growth.png)\n\n| a |\n|---|\n| 1 |\n")
    assert 'src="data:image/png;base64,' in made and "<td>1</td>" in made and "<title>A title</title>" in made


def test_every_plan_is_a_part_of_the_reproduction_and_the_documents_come_last():
    listed = subprocess.run([ROOT / "results" / "reproduce.sh", "--list"], capture_output=True, text=True, check=True)
    parts = listed.stdout.split()
    assert {path.stem for path in (ROOT / "results" / "plans").glob("*.toml")} <= set(parts)
    assert {path.stem for path in (ROOT / "examples").glob("*.toml")} <= set(parts)
    assert (parts[0], parts[-1]) == ("table1", "documents")
    wrong = subprocess.run([ROOT / "results" / "reproduce.sh", "tabel1"], capture_output=True, text=True)
    assert wrong.returncode == 2 and "no part 'tabel1'" in wrong.stderr


def test_a_part_of_the_reproduction_tells_once_what_it_took_over_all_restarts(tmp_path):
    """The stand-in of Python notes what it is asked, and fails for as long as a file is there."""
    (tmp_path / "results").mkdir()
    shutil.copy(ROOT / "results" / "reproduce.sh", tmp_path / "results")
    asked, broken, stand_in = tmp_path / "asked", tmp_path / "broken", tmp_path / "python"
    stand_in.write_text(f'#!/bin/sh\necho "$*" >> {asked}\n[ ! -e {broken} ] || sleep 1.1 && [ ! -e {broken} ]\n')
    stand_in.chmod(0o755)
    broken.touch()
    command = [tmp_path / "results" / "reproduce.sh", "story"]
    env = {**os.environ, "PYTHON": str(stand_in), "PFEDDSH_DATA": str(tmp_path)}
    assert subprocess.run(command, env=env, capture_output=True).returncode == 1
    assert int((tmp_path / "runs" / "spent" / "story").read_text()) >= 1
    broken.unlink()
    for _ in range(2):
        assert subprocess.run(command, env=env, capture_output=True).returncode == 0
    told = [line.split() for line in asked.read_text().splitlines() if "measured.py" in line]
    assert [line[:-1] for line in told] == [["results/measured.py", "reproduce", "story", "seconds"]]
    assert int(told[0][-1]) >= 1


def test_a_step_that_runs_share_costs_once(script, tmp_path):
    """Both schedules begin with eight clients: the second pays for its own later steps alone."""
    for schedule in ("8+2", "8+2x1"):
        made = results("fedavg", schedule)
        write(tmp_path / schedule, made | {"seconds": made["seconds"] | {"total": 3600.0}})
    runs = script["Runs"](tmp_path)
    made = [run for group in runs.made for cell in group.cells for run in cell.runs]
    cost = runpy.run_path(str(ROOT / "results" / "cost.py"))
    assert cost["hours"](made[:1]) == pytest.approx(1.0) == cost["hours"](made[:1] * 2)
    assert cost["hours"](made) == pytest.approx(1.5, abs=0.01)  # 200 rounds of 400 are new


def test_the_documents_say_what_the_runs_say(script):
    """Every number of a run in README and docs, as `results/tables.py --check` has it."""
    runs = script["Runs"]()
    for path, text in script["documents"](runs).items():
        assert path.read_text() == text, f"{path.name}: run `python results/tables.py`"
    assert not script["faults"](runs)
