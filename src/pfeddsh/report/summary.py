"""Numbers in plain words: under which protocol, who wins, who pays."""

from collections.abc import Sequence

from pfeddsh.report import measures, paired
from pfeddsh.report.grouping import Cell, Group, Setting
from pfeddsh.report.measures import Measure, Spread, over_seeds, worst_loss
from pfeddsh.report.paired import TOO_FEW, PerClient, against_best, best_other, ranking, shared_seeds
from pfeddsh.report.table import Column, p_value
from pfeddsh.results.metrics import LOST

POINTS, PERCENT = Column("points", signed=True), Column("%")


def sentences(group: Group) -> list[str]:
    """Everyone at the end, then newcomers, the first batch, and those who lost, over the whole run.

    Over the last step alone, as in the paper's Table 1, clients that have lost much before may look like winners.
    """
    contest = group.contest
    if group.cells[0].runs[0].results.steps < 2:
        return ["There is only one step, and no client joined later, so there is neither PA nor RI."]
    if len(contest) < 2:
        return [line for cell in contest for line in (_alone(cell), _losers(contest))]
    everyone = measures.everyone_at_the_end, paired.at_the_end
    return [
        _winner("Everyone at the end: the best is", "accuracy", contest, *everyone, PERCENT),
        _winner("Newcomers: the best is", "PA", contest, measures.pa_mean, paired.everyone_who_joined),
        _winner("The first batch: the best is", "change", contest, measures.ri_total, paired.first_batch),
        _losers(contest),
    ]


def _alone(cell: Cell) -> str:
    end = _points(over_seeds(cell, measures.everyone_at_the_end), PERCENT)
    pa, ri = _points(over_seeds(cell, measures.pa_mean)), _points(over_seeds(cell, measures.ri_total))
    return (
        f"{cell.label} is the only method here: accuracy of everyone at the end {end}, PA {pa}, change of the first "
        f"batch {ri}."
    )


def headline(group: Group) -> str:
    """The result of a group in one sentence."""
    ranked = ranking(group.contest, measures.everyone_at_the_end)
    if not ranked:
        return "No accuracies."
    (best, own), others = ranked[0], ranked[1:]
    lost = over_seeds(best, measures.lost)
    harm = (
        "" if lost is None else f"; {lost.mean:.0f} % of its existing clients lost more than {LOST:g} points in a step"
    )
    if not others:
        return f"{best.label}: {own.mean:.1f} % for everyone at the end{harm}."
    second = best_other(best, group.contest, measures.everyone_at_the_end) or others[0][0]
    shared = shared_seeds(best, second)
    own, other = (over_seeds(cell, measures.everyone_at_the_end, shared) or own for cell in (best, second))
    found = against_best(group.contest, measures.everyone_at_the_end, paired.at_the_end).get(best.id)
    chance = " (may be chance)" if found is not None and found.beyond_chance == "no" else ""
    next_ = f"next {second.label}, {other.mean:.1f} %{chance}"
    return f"{best.label} is best for everyone at the end: {own.mean:.1f} %, {next_}{harm}."


def _winner(
    words: str, name: str, cells: Sequence[Cell], measure: Measure, per_client: PerClient, unit: Column = POINTS
) -> str:
    """The best and the next, and whether the distance means anything."""
    ranked = ranking(cells, measure)
    if len(ranked) < 2:
        return f"{name} is known for too few methods to compare."
    best = ranked[0][0]
    second = best_other(best, cells, measure) or ranked[1][0]
    shared = shared_seeds(best, second)
    own, other = over_seeds(best, measure, shared), over_seeds(second, measure, shared)
    line = f"{words} {best.label}, {name} {_points(own, unit)}; next is {second.label}, {_points(other, unit)}."
    found = against_best(cells, measure, per_client).get(best.id)
    if found is None:
        return f"{line} They share no seed, so the difference was not tested."
    seeds = "one shared seed" if found.seeds == 1 else f"{found.seeds} shared seeds ({found.better} in favour)"
    verdict = {"yes": "beyond chance", "no": "may be chance"}.get(found.beyond_chance, f"{TOO_FEW} to tell from chance")
    over = "" if found.p_seeds is None else f", over seeds {p_value(found.p_seeds)}"
    return (
        f"{line} Over {seeds}: {POINTS.show(found.difference)} points, {verdict} (p over {found.clients} clients "
        f"{p_value(found.p)}{over})."
    )


def _points(spread: Spread | None, unit: Column = POINTS) -> str:
    if spread is None:
        return "unknown"
    return f"{unit.show(spread)}{' %' if unit is PERCENT else ''} ({spread.n} seed{'s' * (spread.n > 1)})"


def _losers(cells: Sequence[Cell]) -> str:
    """Whose existing clients got clearly worse, the most harmed first."""
    harmed = []
    for cell in cells:
        share, loss = over_seeds(cell, measures.lost), worst_loss(cell)
        if share and share.mean and loss:
            harmed.append((share.mean, cell.label, loss))
    if not harmed:
        return f"No existing client lost more than {LOST:g} points in any step."
    harmed.sort(key=lambda each: -each[0])
    told = [f"{label} {share:.0f} %" if share >= 1 else f"{label} under 1 %" for share, label, _ in harmed]
    _, label, loss = max(harmed, key=lambda each: each[2].points)
    unharmed = [cell.label for cell in cells if cell.label not in {label for _, label, _ in harmed}]
    none = f" No client lost that much under {', '.join(unharmed)}." if unharmed else ""
    return (
        f"Existing clients that lost more than {LOST:g} points in a step: {', '.join(told)}. Largest loss: client "
        f"{loss.client} of seed {loss.seed} under {label}, {loss.points:.1f} points in step {loss.step}.{none}"
    )


def protocol(setting: Setting) -> str:
    """The protocol of a setting in words."""
    if setting.protocol is None:
        return "Protocol not recorded (results.json of an older version, without a config.toml beside it)."
    known = dict(setting.protocol)
    split = f"Dirichlet {known['alpha']}" if known.get("partition") == "dirichlet" else str(known.get("partition"))
    text = (
        f"Clients by {split}; {known.get('rounds_first')} rounds for the first batch, {known.get('rounds_later')} for "
        f"each later one; {100 * float(known.get('sample_fraction') or 0):g} % of the joining batch sampled; "
        f"{known.get('local_epochs')} local epoch(s), SGD, learning rate {known.get('lr')}, momentum "
        f"{known.get('momentum')}, batch size {known.get('batch_size')}."
    )
    unlike = ", ".join(f"{name} {value}" for name, value in setting.differs().items())
    return text + (f" Different from the default protocol: {unlike}." if unlike else "")
