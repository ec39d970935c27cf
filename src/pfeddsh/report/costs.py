"""The tables of what methods cost: the server's time, bytes on the wire, channels of the network."""

from collections.abc import Callable, Sequence
from typing import Any

from pfeddsh.report import paper
from pfeddsh.report.columns import REPLAY
from pfeddsh.report.contract import Results
from pfeddsh.report.grouping import Group
from pfeddsh.report.measures import over_seeds, replay_seconds
from pfeddsh.report.table import METHOD, SEED_LIST, Column, Row, Table, by


def latency(groups: Sequence[Group]) -> Table:
    columns = (
        METHOD, SEED_LIST,
        Column("server round", "the server's work in an ordinary round", digits=4, unit="s"), REPLAY,
        Column("amortised", "server round plus replay spread over the rounds of a later step", digits=4, unit="s"),
        Column("whole round", "with the clients' training as simulated here", digits=3, unit="s"),
        Column("paper round", digits=2, unit="s"), Column("paper replay", digits=2, unit="s"),
        Column("paper averaged", digits=2, unit="s"),
    )  # fmt: skip
    rows = []
    for group in groups:
        rounds = dict(group.setting.protocol or ()).get("rounds_later")

        def amortised(run: Results, rounds: Any = rounds) -> float | None:
            replay = replay_seconds(run)
            return run.seconds.server_round_mean + replay / rounds if rounds and replay is not None else None

        for cell in by(lambda run: run.seconds.server_round_mean, group.contest_and_ablations, lowest=True):
            ours = (
                lambda run: run.seconds.server_round_mean,
                replay_seconds,
                amortised,
                lambda run: run.seconds.round_mean,
            )
            old = paper.beside("latency", cell, 3)
            rows.append(Row(group, cell, (cell.label, cell.seeds, *(over_seeds(cell, m) for m in ours), *old)))
    note = (
        "The fastest server comes first. Wall time on the machines that made the runs; the paper's numbers are from "
        "another machine. Amortised needs the number of rounds, which results.json of older versions lacks."
    )
    return Table("latency", "Server latency", note, columns, tuple(rows))


def payload(groups: Sequence[Group]) -> Table:
    columns = (
        METHOD, SEED_LIST,
        Column("down", "to an active client per round", unit="KiB"),
        Column("up", "from an active client per round", unit="KiB"), Column("total", "per round", unit="KiB"),
        Column("once down", "per client, one-off", unit="KiB"), Column("once up", "per client, one-off", unit="KiB"),
        Column("paper down", unit="KiB"), Column("paper up", unit="KiB"),
    )  # fmt: skip
    ours: tuple[Callable[[Results], float | None], ...] = (
        lambda run: run.payload_kib.down, lambda run: run.payload_kib.up,
        lambda run: run.payload_kib.down + run.payload_kib.up,
        lambda run: run.payload_kib.once_down, lambda run: run.payload_kib.once_up,
    )  # fmt: skip
    rows = []
    for group in groups:
        for cell in by(ours[2], group.contest_and_ablations, lowest=True):
            old = paper.payload(cell)
            rows.append(Row(group, cell, (cell.label, cell.seeds, *(over_seeds(cell, m) for m in ours), *old)))
    note = "The smallest comes first. Counted from the messages, tensors only. Zero: the method sends no such part."
    return Table("payload", "Payload", note, columns, tuple(rows))


def capacity(groups: Sequence[Group]) -> Table:
    names = ("active", "new", "reused", "total", "width", "novelty")
    counts = (Column(name, unit="channels") for name in names)
    columns = (METHOD, Column("seed"), Column("step"), Column("layer", text=True), *counts)
    rows = [
        Row(group, cell, (cell.label, run.results.seed, step, layer, *(used.get(name) for name in names)))
        for group in groups for cell in group.cells for run in cell.runs
        for step, layers in enumerate(run.results.capacity, 1)
        for layer, used in (layers or {}).items() if "total" in used
    ]  # fmt: skip
    note = (
        "Channels in the step's own mask: new ones and those reused from earlier steps; total allocated so far, of the "
        "layer's width. Reuse says nothing about the data: used channels get no gradient on their logits, so every "
        "later mask holds all of them. Novelty, the dimension of the step's updates outside what used channels reach, "
        "cannot exceed the number of clients that sent updates, even if their data are new."
    )
    return Table("capacity", "Neuron usage, step by step", note, columns, tuple(rows))
