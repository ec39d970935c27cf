"""The first thing a reader sees: who wins, who pays, in plain words."""

from collections.abc import Callable, Sequence

from pfeddsh.report import measures
from pfeddsh.report.arrange import Cell, Group
from pfeddsh.report.measures import Measure, Spread, compare, over_seeds, worst_loss
from pfeddsh.report.read import Results
from pfeddsh.report.tables import Column

POINTS = Column("", signed=True)


def sentences(group: Group) -> list[str]:
    """Newcomers, existing clients, and those who lost."""
    contest = group.contest
    if contest and contest[0].runs[0].results.steps < 2:
        return ["One step only: nobody joined later, so there is neither PA nor RI."]
    lines = [
        _winner("Newcomers gain most with", "PA", contest, measures.pa_last, measures.newcomers),
        _winner("Existing clients fare best with", "RI", contest, measures.ri_last, measures.existing),
        _losers(contest),
    ]
    return [line for line in lines if line]


def _winner(
    words: str, name: str, cells: Sequence[Cell], measure: Measure, per_client: Callable[[Results], dict[int, float]]
) -> str | None:
    scored = sorted(((s.mean, c, s) for c in cells if (s := over_seeds(c, measure))), key=lambda x: -x[0])
    if not scored:
        return None
    _, best, spread = scored[0]
    if len(scored) == 1:
        return f"{best.label}, the only method here, has {name} {_points(spread)}."
    line = f"{words} {best.label}: {name} {_points(spread)}."
    _, second, other = scored[1]
    paired = compare(best, second, per_client)
    if paired is None:
        return f"{line} Next is {second.label} with {_points(other)}; they share no seed, so nothing was tested."
    seeds = "the one seed" if paired.seeds == 1 else f"{paired.better} of the {paired.seeds} seeds"
    verdict = "more than chance among these clients" if paired.p < 0.05 else "within chance among these clients"
    return (
        f"{line} Next is {second.label} with {_points(other)}; in {seeds} that both have, the difference is "
        f"{POINTS.show(paired.difference)} points, {verdict} (p = {paired.p:.2g}, {paired.clients} clients)."
        .replace("in 0 of", "positive in 0 of")
    )  # fmt: skip


def _points(spread: Spread) -> str:
    return f"{POINTS.show(spread)} ({spread.n} seed{'s' * (spread.n > 1)})"


def _losers(cells: Sequence[Cell]) -> str | None:
    """Whose existing clients got worse, the most harmed first."""
    harmed = []
    for cell in cells:
        share, loss = over_seeds(cell, measures.worse), worst_loss(cell)
        if share and loss:
            harmed.append((share.mean, cell.label, loss))
    if not harmed:
        return "No existing client lost anything in any step."
    harmed.sort(key=lambda each: -each[0])
    told = [f"{label} {share:.0f} %" if share >= 1 else f"{label} under 1 %" for share, label, _ in harmed]
    _, label, loss = max(harmed, key=lambda each: each[2].points)
    unharmed = [cell.label for cell in cells if cell.label not in {label for _, label, _ in harmed}]
    none = f" None lost under {', '.join(unharmed)}." if unharmed else ""
    return (
        f"Existing clients that lost accuracy in a step: {', '.join(told)}. Hardest hit: client {loss.client} of seed "
        f"{loss.seed} under {label}, {loss.points:.1f} points in step {loss.step}.{none}"
    )
