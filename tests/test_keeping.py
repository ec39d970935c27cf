"""Everyone as if existing clients had kept their models: derived from a run, and what such a run would have."""

import json
import runpy
from pathlib import Path

import pytest
from fabricate import results, write

ROOT = Path(__file__).parents[1] / "results"


@pytest.fixture(scope="module")
def scripts():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT))
        yield runpy.run_path(str(ROOT / "tables.py"))


@pytest.mark.parametrize("method", ["fedavg-prior", "fedrep", "pfeddsh"])
def test_it_is_what_a_run_has_whose_existing_clients_keep_theirs(method, reference, scripts, tmp_path):
    write(tmp_path / "run", json.loads(json.dumps(reference(method).results)))
    kept = reference(method, existing="keep").results
    runs = scripts["Runs"](tmp_path)
    group = runs.groups[0]
    derived = next(cell for cell in group.cells if cell.label == f"{method}, existing=keep").runs[0].results
    assert derived.acc == kept["acc"]
    assert (derived.acc_end_mean, derived.pa, derived.ri) == (kept["acc_end_mean"], kept["pa"], kept["ri"])
    assert len(runs.made[0].cells) == 1, "the tables of what was run have no more than that"


def test_only_methods_as_they_are_have_it(scripts, tmp_path):
    write(tmp_path / "a", results("central", "80+20"))
    write(tmp_path / "b", results("fedavg-finetune", "80+20", existing="keep"))
    write(tmp_path / "c", results("fedper", "80+20", later="frozen"))
    write(tmp_path / "d", results("fedrep", "80+20", options={"head_epochs": 1}))
    write(tmp_path / "e", results("pfeddsh-hyper", "80+20", existing="guard"))
    group = scripts["Runs"](tmp_path).groups[0]
    assert not [cell.label for cell in group.cells if "existing=keep" in cell.label]


def test_tables_have_it_as_a_column_and_the_nearest_rival_may_be_one(scripts, tmp_path):
    write(tmp_path / "a", results("pfeddsh", "80+20", drift=3.0, existing="guard"))
    write(tmp_path / "b", results("fedrep", "80+20", drift=-9.0))
    runs = scripts["Runs"](tmp_path)
    table = scripts["main_table"](runs, "80+20").splitlines()
    assert len(table) == 4 and table[0].split(" | ")[2] == "if existing clients kept theirs"
    followed, kept = (float(table[3].split(" | ")[column]) for column in (1, 2))
    assert kept == pytest.approx(followed + 9 * 0.8, abs=0.5)
    _, lead, name = scripts["nearest"](runs, ["fedrep", "fedrep, existing=keep"], "80+20")
    assert name == "FedRep, existing clients keep theirs" and lead < 9
