"""Robust aggregation with a memory: a few clients, by mistake or on purpose, must not carry the common model away.

No rule that sees one round alone holds when most of a small cohort is hostile by chance (Karimireddy et al. 2021,
"Learning from history"). A coordinator knows who sends what, so `history` remembers, for as long as a step lasts:

- Norm clipping (Sun et al. 2019): no change is longer than twice the median of this round and the last ones. At the
  median itself it cuts half of all honest changes, which costs up to three points (docs/robustness.md).
- Reputation by direction (after FoolsGold, Fung et al. 2020, and FLTrust, Cao et al. 2021): the mean cosine of a change
  with the last ones of all other clients is added up, client by client. Whoever goes against the others, while most
  go with them, is left out for as long as that is so.

Everyone counts alike for the others, also who is left out: an unlucky first cohort decides nothing for good. Where
honest changes have nothing in common, as at the end of training, only norms count.
"""

import statistics
from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from pfeddsh.mechanisms import common
from pfeddsh.messages import State
from pfeddsh.models.base import Model, split_statistics

Aggregation = Literal["mean", "history"]
LAST = "robust/last/"  # of each client of the step: the direction of its last upload
HEAVIEST = 3.0  # times the median number of images that anyone weighs
ENOUGH = 3  # norms among which there is a median worth keeping; and others of whom few count less than many
LONGEST = 2.0  # times the median norm that any change is
RECENT = 30  # norms of the step that make up for a small cohort
FRESH = 0.8  # what an upload is still worth to compare with, a round later
MOST = 1.0  # agreement that anyone can gather: a good name does not last for ever
LEAST = 0.05  # agreement of the median client from which on directions tell anything
AGAINST = -0.25  # of it: below that one is left out


def opened(state: State) -> None:
    """A step begins: its clients are new, and rates start again. The largest usual norm so far bounds its first."""
    peak = state.facts.get("robust", {}).get("peak")
    state.facts["robust"] = {"peak": peak, "norms": [], "ages": {}, "agreement": {}, "left_out": []}
    for name in [name for name in state.tensors if name.startswith(LAST)]:
        del state.tensors[name]


def aggregate(model: Model, state: State, clients: list[int], deltas: Tensor, samples: Tensor) -> Tensor:
    """What the common model is moved by, given what clients changed (m x P); see `common.mean` for the rest."""
    memory = state.facts["robust"]
    norms = deltas.double().norm(dim=1)
    units = deltas / norms.clamp_min(torch.finfo(deltas.dtype).tiny)[:, None].to(deltas)
    deltas = units * norms.clamp_max(bound(memory, norms.tolist()))[:, None].to(deltas)
    compare(state, clients, units)
    kept = [i for i, client in enumerate(clients) if client not in memory["left_out"]]
    if not kept:
        return torch.zeros_like(deltas[0])
    samples = samples.clamp_max(HEAVIEST * float(samples.median()))
    return common.mean(model, deltas[kept], samples[kept])


def bound(memory: dict[str, Any], norms: list[float]) -> float:
    """Twice the median norm of this round and the last ones of the step; at its beginning, of the largest ever."""
    known = [*norms, *memory["norms"]]
    median: float = statistics.median_low(known)
    if memory["peak"] is not None and not memory["norms"]:
        median = min(median, memory["peak"])
    memory["norms"] = [*memory["norms"], *(min(norm, median) for norm in norms)][-RECENT:]
    if len(known) >= ENOUGH:
        memory["peak"] = max(median, memory["peak"] or 0.0)
    return LONGEST * median


def compare(state: State, clients: list[int], units: Tensor) -> None:
    """Add up how far each of these goes where the others go, or last went, and note who is left out."""
    memory, names = state.facts["robust"], [str(client) for client in clients]
    ages = memory["ages"] = {name: age + 1 for name, age in memory["ages"].items()} | dict.fromkeys(names, 0)
    state.tensors |= {LAST + name: unit.clone() for name, unit in zip(names, units, strict=True)}
    worth = torch.tensor([FRESH**age for age in ages.values()])
    cosines = worth * (units @ torch.stack([state[LAST + name] for name in ages]).T)
    agreement: dict[str, float] = memory["agreement"]
    for name, row in zip(names, cosines, strict=True):
        others = float(row.sum() - row[list(ages).index(name)]) / (float(worth.sum()) - 1 + ENOUGH)
        agreement[name] = min(MOST, agreement.get(name, 0.0) + others)
    usual = statistics.median_low(agreement.values())
    against = [int(name) for name, told in agreement.items() if told < AGAINST * usual]
    memory["left_out"] = against if usual > LEAST else []


def forget(state: State, client: int) -> None:
    """A client has left, or its step is over."""
    state.tensors.pop(LAST + str(client), None)
    if memory := state.facts.get("robust"):
        memory["ages"].pop(str(client), None)
        memory["agreement"].pop(str(client), None)
        memory["left_out"] = [k for k in memory["left_out"] if k != client]


def left_out(state: State) -> list[int]:
    """Whose uploads do not count at present."""
    found: list[int] = state.facts.get("robust", {}).get("left_out", [])
    return found


def pooled(model: Model, told: Sequence[Tensor]) -> Tensor:
    """Statistics of all clients' features together, as long as most of them tell the truth.

    The coordinate-wise median (Yin et al. 2018) in place of both means of the law of total variance.
    """
    together = [told[0][:0]]
    for mean, variance in split_statistics(model, torch.stack(list(told))):
        centre = mean.median(0).values
        together += [centre, (variance + (mean - centre).square()).median(0).values]
    return torch.cat(together)
