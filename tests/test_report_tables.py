"""The numbers of the report against the same computed another way, and the formats they are written in."""

import csv
import io
import statistics
from pathlib import Path

import pytest
from fabricate import NEW, results, write
from scipy.stats import wilcoxon

from pfeddsh.compare.plan import make
from pfeddsh.report import paired, table, tables, writers
from pfeddsh.report.grouping import group_runs
from pfeddsh.report.measures import Spread
from pfeddsh.report.paired import compare, signed_rank
from pfeddsh.report.read import gather
from pfeddsh.report.summary import sentences
from pfeddsh.results.metrics import summary
from pfeddsh.values import read

METHODS = ("fedavg", "fedper", "pfeddsh")
SEEDS = (0, 1, 2)
EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.fixture(scope="module")
def group(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    for method in METHODS:
        for seed in SEEDS:
            drift = 0.5 if method == "pfeddsh" else -2.0
            write(folder / f"{method}{seed}", results(method, "80+4x5", seed, drift=drift))
    write(folder / "gate", results("pfeddsh-hyper-gate", "80+4x5"))
    return group_runs(gather([folder])[0])[0][0]


@pytest.fixture(scope="module")
def made(group):
    return {table.name: table for table in tables.build([group])}


def value(table, method, column):
    names = [c.name for c in table.columns]
    row = next(row for row in table.rows if row.cell.label == method)
    return row.values[names.index(column)]


@pytest.mark.parametrize("method", METHODS)
def test_measures_are_the_mean_and_deviation_over_seeds(made, method):
    runs = [results(method, "80+4x5", seed, drift=0.5 if method == "pfeddsh" else -2.0) for seed in SEEDS]
    for column, values in {
        "everyone at the end": [statistics.mean(run["acc"][-1]) for run in runs],
        "lost > 2 points": [statistics.mean(run["lost_share"][1:]) for run in runs],
        "PA": [statistics.mean(run["pa"][1:]) for run in runs],
        "its change": [run["ri_cumulative"] for run in runs],
        "first batch": [statistics.mean(a for a in run["acc"][0] if a is not None) for run in runs],
        "PA, last step": [run["pa"][-1] for run in runs],
        "RI, last step": [run["ri_last"] for run in runs],
    }.items():
        found = value(made["table1" if "last step" in column else "standings"], method, column)
        assert found.n == 3
        assert found.mean == pytest.approx(statistics.mean(values))
        assert found.deviation == pytest.approx(statistics.stdev(values))


def test_standings_are_ordered_by_everyone_at_the_end(tmp_path):
    for method, drift in {"fedavg": -5.0, "fedper": 2.0, "fedrep": -9.0, "local": 9.0}.items():
        write(tmp_path / method, results(method, drift=drift))
    shown = tables.build(group_runs(gather([tmp_path])[0])[0])[0]
    assert [row.cell.label for row in shown.rows] == ["fedper", "fedavg", "fedrep", "local"], "the control comes last"


def test_files_of_an_older_version_are_shown_in_full(tmp_path):
    new = results("fedper", "80+20")
    write(tmp_path / "old", {key: value for key, value in new.items() if key not in NEW})
    shown = tables.build(group_runs(gather([tmp_path])[0])[0])[0]
    assert value(shown, "fedper", "everyone at the end").mean == new["acc_end_mean"]
    assert value(shown, "fedper", "lost > 2 points").mean == new["lost_share"][1]
    assert value(shown, "fedper", "PA, 3+ visits").mean == new["pa_sampled"][1] != new["pa"][1]


def test_the_paper_stands_beside_it(made):
    assert value(made["table1"], "fedper", "paper RI") == -9.09
    assert value(made["table1"], "fedper", "paper PA") == 11.60
    assert value(made["ablation"], "pfeddsh", "paper accuracy") is None, "the paper's method is pfeddsh-paper here"
    assert value(made["latency"], "pfeddsh", "paper averaged") == 0.42


@pytest.mark.parametrize(("method", "printed"), [("pfeddsh-paper", 68.40), ("pfeddsh-paper-unmasked", 51.22)])
def test_the_papers_ablation_stands_beside_its_own_form(tmp_path, method, printed):
    write(tmp_path / "run", results(method, "80+4x5"))
    made = {table.name: table for table in tables.build(group_runs(gather([tmp_path])[0])[0])}
    assert value(made["ablation"], method, "paper accuracy") == printed


def test_the_papers_numbers_are_not_set_beside_another_protocol(tmp_path):
    write(tmp_path / "run", results("fedper", "80+4x5", alpha=0.5))
    groups, _ = group_runs(gather([tmp_path])[0])
    assert value(tables.build(groups)[1], "fedper", "paper RI") is None


def test_every_run_of_the_sensitivity_plan_has_the_papers_numbers_beside_it(tmp_path):
    plan = make(read(EXAMPLES / "sensitivity.toml"))
    for run in plan.runs()[: len(plan.variants)]:
        write(tmp_path / run.variant, results("pfeddsh-paper", "80+4x5", options=run.config.options))
    made = {table.name: table for table in tables.build(group_runs(gather([tmp_path])[0])[0])}
    printed = [row.values[-2:] for row in made["sensitivity"].rows]
    assert len(set(printed)) == 10 and None not in {number for pair in printed for number in pair}
    assert value(made["sensitivity"], "pfeddsh-paper, images=512", "paper RI") == 2.25
    budgets = [dict(row.cell.variant.settings).get("images") for row in made["sensitivity"].rows]
    assert [images for images in budgets if images] == ["32", "64", "128", "512"], "by size, not by the alphabet"


def test_whole_runs_are_tested_too_unless_they_are_one_step(made, tmp_path):
    assert {row.values[0] for row in made["tests"].rows} == {
        "everyone at the end",
        "PA",
        "change of the first batch",
        "PA, last step",
        "RI, last step",
    }
    runs = {method: [results(method, "80+4x5", seed, drift=drift) for seed in SEEDS]
            for method, drift in (("pfeddsh", 0.5), ("fedavg", -2.0), ("fedper", -2.0))}  # fmt: skip
    total = {method: statistics.mean(run["ri_cumulative"] for run in own) for method, own in runs.items()}
    best = max(total["fedavg"], total["fedper"])
    row = next(row for row in made["tests"].rows if row.values[:2] == ("change of the first batch", "pfeddsh"))
    assert row.values[2] == pytest.approx(total["pfeddsh"] - best)
    assert row.values[5] == 80 * 3
    for method in METHODS:
        write(tmp_path / method, results(method, "80+20"))
    short = {table.name: table for table in tables.build(group_runs(gather([tmp_path])[0])[0])}
    assert {row.values[0] for row in short["tests"].rows} == {
        "everyone at the end",
        "PA, last step",
        "RI, last step",
    }


def test_the_paired_test_is_over_clients_of_the_same_seed(group):
    ours, theirs = group.main["pfeddsh"], group.main["fedper"]
    found = compare(ours, theirs, paired.existing)
    differences = []
    for a, b in zip(ours.runs, theirs.runs, strict=True):
        for k, joined in enumerate(a.results.batch):
            if joined < 5:
                change = [run.results.acc[4][k] - run.results.acc[3][k] for run in (a, b)]
                differences.append(change[0] - change[1])
    assert (found.seeds, found.better, found.clients) == (3, 3, 3 * 95)
    assert found.difference == pytest.approx(statistics.mean(differences))
    assert found.p == pytest.approx(wilcoxon(differences).pvalue)


def test_no_difference_is_no_evidence():
    assert signed_rank([0.0] * 20) == 1.0
    assert signed_rank([1.0, -1.0] * 10) > 0.9
    assert signed_rank([1.0] * 20) < 0.001


def test_clients_without_a_difference_take_the_lowest_ranks_and_no_side():
    ranked = [(rank, -1 if rank % 3 == 0 else 1) for rank in range(21, 81)]  # after twenty ties
    signed = [sign * float(rank) for rank, sign in ranked]
    against = sum(rank for rank, sign in ranked if sign < 0)
    expected, spread = sum(rank for rank, _ in ranked) / 2, sum(rank**2 for rank, _ in ranked) / 4
    p = 2 * statistics.NormalDist().cdf((against - expected) / spread**0.5)
    assert signed_rank([0.0] * 20 + signed) == pytest.approx(p, rel=1e-6)


def test_amortised_latency_spreads_the_replay_over_a_step(made):
    assert value(made["latency"], "pfeddsh", "amortised").mean == pytest.approx(0.05 + 8.0 / 100)


def test_the_highest_mean_is_marked_only_if_all_have_the_same_seeds(made, tmp_path):
    for kind, name in (("standings", "everyone at the end"), ("standings", "its change"), ("table1", "RI, last step")):
        at = [column.name for column in made[kind].columns].index(name)
        assert {row.cell.label for row in made[kind].rows if at in row.best} == {"pfeddsh"}
    write(tmp_path / "a", results("fedavg", seed=0))
    write(tmp_path / "b", results("fedper", seed=1))
    groups, _ = group_runs(gather([tmp_path])[0])
    assert not any(row.best for row in tables.build(groups)[0].rows)


def test_the_summary_names_the_winner_and_the_client_hit_hardest(group):
    everyone, newcomers, existing, lost = sentences(group)
    end = statistics.mean(run.results.acc_end_mean for run in group.main["pfeddsh"].runs)
    assert everyone.startswith(f"Everyone at the end: the best is pfeddsh, accuracy {end:.2f} ± ")
    assert newcomers.startswith("Newcomers: the best is ") and ", PA +" in newcomers
    assert existing.startswith("The first batch: the best is pfeddsh, change +")
    assert "3 shared seeds (3 in favour)" in existing
    losses = [
        (before - after, k, run.results.seed, step)
        for cell in group.contest
        for run in cell.runs
        for step in range(2, 6)
        for k, (before, after) in enumerate(zip(run.results.acc[step - 2], run.results.acc[step - 1], strict=True))
        if before is not None
    ]
    points, client, seed, step = max(losses)
    assert f"Largest loss: client {client} of seed {seed} under " in lost
    assert f"{points:.1f} points in step {step}" in lost


def test_the_summary_is_about_the_whole_run_not_the_last_step(tmp_path):
    fallen, steady = results("fedavg", drift=-5.0), results("fedper", drift=0.0)
    last, before = fallen["acc"][-1], fallen["acc"][-2]
    fallen["acc"][-1] = [a if b is None else b + 2 for a, b in zip(last, before, strict=True)]  # regains a little
    fallen |= summary(fallen["acc"], fallen["batch"], fallen["local"])
    write(tmp_path / "a", fallen)
    write(tmp_path / "b", steady)
    groups, _ = group_runs(gather([tmp_path])[0])
    assert sentences(groups[0])[2].startswith("The first batch: the best is fedper, change ")


def test_the_winner_is_found_among_the_seeds_that_all_have(tmp_path):
    write(tmp_path / "a", results("fedper", seed=0, drift=-1.0))
    write(tmp_path / "b", results("fedavg", seed=0, drift=1.0))
    write(tmp_path / "c", results("fedavg", seed=1, drift=-20.0))
    groups, _ = group_runs(gather([tmp_path])[0])
    assert "The first batch: the best is fedavg, change +" in sentences(groups[0])[2]
    assert "(1 seed)" in sentences(groups[0])[2]


def test_a_run_with_one_step_has_neither_pa_nor_ri(tmp_path):
    write(tmp_path / "run", results("fedper", "8"))
    groups, _ = group_runs(gather([tmp_path])[0])
    assert sentences(groups[0]) == [
        "There is only one step, and no client joined later, so there is neither PA nor RI."
    ]
    assert value(tables.build(groups)[0], "fedper", "PA") is None
    write(tmp_path / "other", results("fedavg", "8"))
    group = group_runs(gather([tmp_path])[0])[0][0]
    shown = tables.build([group])[0].of(group)
    assert "PA" not in [column.name for column in shown.columns], "an empty column is left out, and none is best"


def test_pa_of_the_often_sampled_is_shown_where_it_says_something_else(made):
    assert value(made["standings"], "fedper", "PA, 3+ visits") is None, "five newcomers are all sampled often"
    assert value(made["measures"], "fedper", "PA, 3+ visits") == value(made["measures"], "fedper", "PA")


@pytest.mark.parametrize("method", ["pfeddsh-hyper-gate", "local"])
def test_an_ablation_or_the_control_alone_has_its_table_too(tmp_path, method):
    write(tmp_path / "run", results(method))
    groups, _ = group_runs(gather([tmp_path])[0])
    made = {table.name: table for table in tables.build(groups)}
    for name in ("standings", "table1", "latency", "payload"):
        assert [row.cell.label for row in made[name].rows] == [method]
    assert sentences(groups[0])[0].startswith(f"{method} is the only method here: accuracy of everyone at the end ")


def test_optional_fields_of_newer_runs_are_shown(tmp_path):
    content = results("pefll")
    content["pa_zero_shot"] = [None, 1.0, 3.0]
    content["payload_kib"] |= {"once_down": 12.5, "once_up": 0.5}
    write(tmp_path / "run", content)
    made = {table.name: table for table in tables.build(group_runs(gather([tmp_path])[0])[0])}
    assert value(made["table1"], "pefll", "zero-shot PA, last step").mean == 3.0
    assert value(made["standings"], "pefll", "zero-shot PA").mean == 2.0
    assert value(made["payload"], "pefll", "once down").mean == 12.5


def test_csv_has_plain_numbers_and_deviations_apart(made):
    rows = list(csv.DictReader(io.StringIO(writers.comma_separated(made["table1"]))))
    row = next(row for row in rows if row["method"] == "fedper")
    expected = value(made["table1"], "fedper", "RI, last step")
    assert (row["dataset"], row["schedule"], row["n"]) == ("cifar10", "80+4x5", "3")
    assert float(row["RI, last step, points"]) == expected.mean
    assert float(row["RI, last step, points sd"]) == expected.deviation
    assert "alpha=0.1" in row["protocol"]


def test_markdown_shows_mean_and_deviation(made):
    spread = value(made["standings"], "fedper", "everyone at the end")
    text = writers.markdown(made["standings"])
    assert "| everyone at the end, % |" in text, "units stand in every header"
    assert f"| fedper | 3 | {spread.mean:.2f} ± {spread.deviation:.2f} |" in text.replace("**", "")
    widths = {line.count("|") for line in text.splitlines() if line.startswith("|")}
    assert len(widths) == 1


def test_latex_escapes_what_latex_would_read(tmp_path):
    write(tmp_path / "run", results() | {"method": "50%_of & {more} \\input{x}"})
    text = writers.latex(tables.build(group_runs(gather([tmp_path])[0])[0])[0])
    assert "50\\%\\_of \\& \\{more\\} \\textbackslash{}input\\{x\\}" in text
    assert "\\begin{tabular}" in text


def test_every_table_is_ordered_by_what_it_is_about(made):
    def means(name, column):
        return [value(made[name], row.cell.label, column).mean for row in made[name].rows]

    assert means("losses", "lost > 2 points") == sorted(means("losses", "lost > 2 points"), reverse=True)
    assert means("latency", "server round") == sorted(means("latency", "server round"))
    assert means("payload", "total") == sorted(means("payload", "total"))


def test_a_single_run_is_shown_step_by_step_without_tests(tmp_path):
    run = results("fedper", "8+2x3")
    write(tmp_path / "run", run)
    (group,) = group_runs(gather([tmp_path])[0])[0]
    made = {table.name: table.of(group) for table in tables.build([group])}
    assert "tests" not in made
    assert not any(column.name.startswith("p,") for table in made.values() for column in table.columns)
    names = [column.name for column in made["steps"].columns]
    last = dict(zip(names, made["steps"].rows[-1].values, strict=True))
    assert (last["step"], last["newcomers"], last["everyone"]) == (3, 3, pytest.approx(run["acc_end_mean"]))
    assert (last["PA"], last["RI"]) == (run["pa"][-1], run["ri"][-1])


def test_numbers_are_written_with_a_true_minus_and_no_negative_zero():
    column = table.Column("RI", signed=True)
    assert column.show(-1.234) == "\u22121.23"
    assert column.show(-0.001) == "0.00"
    assert column.show(Spread(2.0, 0.5, 3)) == "+2.00 ± 0.50"
    assert column.show(Spread(2.0, None, 1)) == "+2.00"
    assert column.show(None) == "\u2013"
