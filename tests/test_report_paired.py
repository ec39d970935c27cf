"""Is a difference beyond chance? Over clients and over seeds, each rival on the seeds it shares."""

import pytest
from fabricate import results, write
from scipy.stats import ttest_rel

from pfeddsh.report import measures, paired, tables
from pfeddsh.report.grouping import group_runs
from pfeddsh.report.read import gather
from pfeddsh.report.summary import headline, sentences


def group(folder, **runs):
    """Methods with a drift for each seed."""
    for method, drifts in runs.items():
        for seed, drift in drifts.items():
            name = method.replace("_", "-")
            write(folder / f"{name}{seed}", results(name, "8+2x3", seed, drift=drift))
    return group_runs(gather([folder])[0])[0][0]


def verdicts(group):
    found = {table.name: table for table in tables.build([group])}["tests"]
    names = [column.name for column in found.columns]
    return {row.values[:2]: dict(zip(names, row.values, strict=True)) for row in found.rows}


def test_seeds_are_tested_by_their_means(tmp_path):
    made = group(tmp_path, fedper={0: 1.0, 1: 0.5, 2: 2.0}, fedavg=dict.fromkeys(range(3), 0.0))
    own, other = (
        [measures.everyone_at_the_end(run.results) for run in made.main[name].runs] for name in ("fedper", "fedavg")
    )
    found = paired.compare(made.main["fedper"], made.main["fedavg"], paired.at_the_end)
    assert found.p_seeds == pytest.approx(ttest_rel(own, other).pvalue)


def test_beyond_chance_only_where_clients_and_seeds_say_so(tmp_path):
    """Many clients differ in each seed, but not always the same way."""
    made = group(tmp_path, fedper={0: 9.0, 1: 9.0, 2: -2.0}, fedavg=dict.fromkeys(range(3), 0.0))
    row = verdicts(made)["change of the first batch", "fedper"]
    assert float(row["p, clients"].strip("< ")) < 0.05 < float(row["p, seeds"])
    assert row["beyond chance"] == "no"
    assert "may be chance" in sentences(made)[2] and "(may be chance)" in headline(made)


def test_where_both_say_so_it_is(tmp_path):
    made = group(tmp_path, fedper=dict.fromkeys(range(3), 4.0), fedavg=dict.fromkeys(range(3), -4.0))
    assert verdicts(made)["change of the first batch", "fedper"]["beyond chance"] == "yes"
    assert "beyond chance (p over 24 clients" in sentences(made)[2] and "chance" not in headline(made)


def test_two_seeds_are_too_few(tmp_path):
    made = group(tmp_path, fedper=dict.fromkeys(range(2), 4.0), fedavg=dict.fromkeys(range(2), -4.0))
    row = verdicts(made)["everyone at the end", "fedper"]
    assert (row["p, seeds"], row["beyond chance"]) == ("too few seeds", "too few seeds")
    assert "too few seeds to tell from chance" in sentences(made)[0]


def test_a_control_of_one_seed_does_not_hide_the_other_seeds(tmp_path):
    """On seed 0, the only one all three have, fedavg is the best other; on the seeds they share, fedrep is."""
    drifts = {"fedper": {0: 0.0, 1: 0.0, 2: 0.0}, "fedrep": {0: -9.0, 1: 9.0, 2: 9.0}}
    made = group(tmp_path, **drifts, fedavg={0: -2.0})
    best = paired.best_other(made.main["fedper"], made.contest, measures.ri_total)
    assert best.label == "fedrep"
    row = verdicts(made)["change of the first batch", "fedper"]
    assert (row["against"], row["seeds won"]) == ("fedrep", "1 of 3")


def test_no_difference_between_seeds_is_no_evidence():
    assert paired.over_runs([0.0, 0.0, 0.0]) == 1.0
    assert paired.over_runs([1.0, 1.0]) is None
