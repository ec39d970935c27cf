"""The first thing a reader sees: who wins, who pays, in plain words."""

from collections.abc import Callable, Sequence

from pfeddsh.report import measures
from pfeddsh.report.arrange import Cell, Group
from pfeddsh.report.measures import Measure, Spread, against_best, over_seeds, worst_loss
from pfeddsh.report.read import Results
from pfeddsh.report.tables import Column, p_value

POINTS = Column("", signed=True)


def sentences(group: Group) -> list[str]:
    """Newcomers, existing clients, and those who lost."""
    contest = group.contest
    if group.cells[0].runs[0].results.steps < 2:
        return ["One step only: nobody joined later, so there is neither PA nor RI."]
    if len(contest) < 2:
        return [line for cell in contest for line in (_alone(cell), _losers(contest))]
    return [
        _winner("Newcomers gain most with", "PA", contest, measures.pa_last, measures.newcomers),
        _winner("Existing clients fare best with", "RI", contest, measures.ri_last, measures.existing),
        _losers(contest),
    ]


def _alone(cell: Cell) -> str:
    pa, ri = over_seeds(cell, measures.pa_last), over_seeds(cell, measures.ri_last)
    return f"{cell.label} is the only method here: PA {_points(pa)}, RI {_points(ri)}."


def _winner(
    words: str, name: str, cells: Sequence[Cell], measure: Measure, per_client: Callable[[Results], dict[int, float]]
) -> str:
    """The best and the next, and whether the distance means anything."""
    spreads = [(cell, over_seeds(cell, measure)) for cell in cells]
    ranked = sorted(((c, s) for c, s in spreads if s), key=lambda pair: -pair[1].mean)
    if len(ranked) < 2:
        return f"{name} is known for too few methods to compare."
    (best, own), (second, other) = ranked[:2]
    line = f"{words} {best.label}, {name} {_points(own)}; next is {second.label}, {_points(other)}."
    paired = against_best(cells, measure, per_client).get(best.id)
    if paired is None:
        return f"{line} They share no seed, so the difference was not tested."
    seeds = "one shared seed" if paired.seeds == 1 else f"{paired.seeds} shared seeds ({paired.better} in favour)"
    verdict = "clear" if paired.p < 0.05 else "may be chance"
    return (
        f"{line} Over {seeds}: {POINTS.show(paired.difference)} points, {verdict} among these {paired.clients} clients "
        f"(p {p_value(paired.p)})."
    )


def _points(spread: Spread | None) -> str:
    if spread is None:
        return "unknown"
    return f"{POINTS.show(spread)} ({spread.n} seed{'s' * (spread.n > 1)})"


def _losers(cells: Sequence[Cell]) -> str:
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
