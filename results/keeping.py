"""What would have become of everyone if existing clients had kept the model of their own step: no run is needed for it.

Newcomers train alone in their step, so whatever existing clients are served, newcomers end it with the same model. So
each client has its accuracy of that moment to the end, to the bit as a run with `existing = keep` has it.
"""

from collections.abc import Sequence

from pfeddsh.methods import registry
from pfeddsh.report.contract import Results
from pfeddsh.report.grouping import REFERENCES, variant_of
from pfeddsh.report.read import Run
from pfeddsh.results.metrics import everyone_at_the_end, summary


def derived(runs: Sequence[Run]) -> list[Run]:
    """One for each run with the usual settings of its method, if its existing clients do not keep theirs anyway."""
    return [keeping(run) for run in runs if _may(run)]


def _may(run: Run) -> bool:
    method, unusual = run.results.method, variant_of(run).settings
    entry = registry.METHODS.get(method)
    if entry is None or unusual or method in REFERENCES or method.startswith("pfeddsh-"):
        return False
    return entry.later == "newcomers" and entry.existing in ("follow", "guard")


def keeping(run: Run) -> Run:
    found, protocol = run.results, {**(run.protocol or {}), "existing": "keep"}
    acc = kept(found)
    changed = {"acc": acc, "acc_unguarded": None, "protocol": protocol, **summary(acc, found.batch, found.local)}
    return Run(run.path, found.model_copy(update=changed), protocol)


def at_the_end(found: Results) -> float | None:
    """Everyone's mean accuracy then; of an oracle in which existing clients train, none."""
    return None if found.method in REFERENCES else everyone_at_the_end(kept(found))


def kept(found: Results) -> list[list[float | None]]:
    """The accuracy of its own step for each client, from then on."""
    own = [found.acc[joined - 1][k] for k, joined in enumerate(found.batch)]
    steps = range(1, found.steps + 1)
    return [[a if joined <= step else None for a, joined in zip(own, found.batch, strict=True)] for step in steps]
