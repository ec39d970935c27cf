"""Methods by name. A name is a class plus the settings that make it what it is called.

A file of this folder that the table does not mention is a method under the file's own name: one more is one file.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from importlib.metadata import EntryPoint
from pkgutil import iter_modules
from typing import Any, Literal

from pfeddsh import methods, plugins
from pfeddsh.errors import UserError, unknown
from pfeddsh.mechanisms.guard import Existing
from pfeddsh.methods.base import Method
from pfeddsh.methods.central import Central
from pfeddsh.methods.ditto import Ditto
from pfeddsh.methods.fedavg import FedAvg
from pfeddsh.methods.fedclass import FedCLASS
from pfeddsh.methods.fedper import FedPer
from pfeddsh.methods.fedrep import FedRep
from pfeddsh.methods.fedselect import FedSelect
from pfeddsh.methods.fedweit import FedWeIT
from pfeddsh.methods.hr import HR
from pfeddsh.methods.hyperdsh import HyperDSH
from pfeddsh.methods.local import Local
from pfeddsh.methods.odpfl_hn import ODPFLHN
from pfeddsh.methods.pefll import PeFLL
from pfeddsh.methods.pfeddsh import PFedDSH
from pfeddsh.methods.pfedhn import PFedHN
from pfeddsh.methods.task import Task
from pfeddsh.values import checked


@dataclass(frozen=True)
class Entry:
    """A registered name: the class, the settings it presets, who trains later, and what existing clients do then."""

    method: type[Method]
    summary: str
    preset: Mapping[str, Any] = field(default_factory=dict)
    later: Literal["newcomers", "everyone"] = "newcomers"
    existing: Existing = "follow"

    def options(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The complete settings: defaults, then the preset, then what the user gave."""
        return checked(self.method.Settings, {**self.preset, **given}, "options", "setting").model_dump(mode="json")


GROUP = "pfeddsh.methods"  # the entry points by which installed packages offer methods
REQUIRED = ("init", "download", "local", "aggregate")  # of every method

FIRST = {"common_rate": 0, "rate": 0.7, "bias_rate": 0.3}  # the hypernetwork carries everything, as in the paper
REPLAY = {**FIRST, "replay": "paper", "inversion": "sensitivity"}

METHODS: dict[str, Entry] = {
    "local": Entry(Local, "every client alone: the control behind PA"),
    "joint": Entry(
        PFedDSH,
        "an oracle the setting forbids: pfeddsh, but existing clients keep training",
        {"share": 1.0},
        "everyone",
    ),
    "central": Entry(
        Central,
        "an oracle the setting forbids: one model trained on everyone's images, served with each client's prior",
        {"prior": True, "statistics": "pooled"},
        "everyone",
    ),
    "fedavg": Entry(FedAvg, "one model for everyone"),
    "fedper": Entry(FedPer, "shared body, a last layer of its own for every client"),
    "fedrep": Entry(FedRep, "as fedper, but the last layer and the body train in turn"),
    "local-prior": Entry(Local, "every client alone, told its label prior", {"prior": True}),
    "fedavg-prior": Entry(
        FedAvg,
        "one model for everyone; each client adds its label prior",
        {"prior": True, "statistics": "blended"},
    ),
    "fedavg-finetune": Entry(
        FedAvg,
        "fedavg; each client tunes the model at the end of its step and keeps it",
        {"finetune": 2},
        existing="keep",
    ),
    "fedavg-prior-finetune": Entry(
        FedAvg,
        "the same with the label prior",
        {"prior": True, "statistics": "blended", "finetune": 2},
        existing="keep",
    ),
    "fedper-prior": Entry(FedPer, "fedper; each client adds its label prior", {"prior": True}),
    "fedrep-prior": Entry(FedRep, "fedrep; each client adds its label prior", {"prior": True}),
    "ditto": Entry(Ditto, "fedavg, and a model of its own for every client, drawn towards the common one"),
    "ditto-prior": Entry(Ditto, "ditto; each client adds its label prior", {"prior": True}),
    "fedselect": Entry(FedSelect, "every client keeps to itself the weights that change most"),
    "pfedhn": Entry(PFedHN, "a hypernetwork makes every client's weights from an embedding"),
    "pfedhn-embed-only": Entry(PFedHN, "after step 1, only embeddings of newcomers train", {"novel": "embed_only"}),
    "pfedhn-local-head": Entry(
        PFedHN, "the hypernetwork makes the body, the last layer is the client's own", {"local_head": True}
    ),
    "pefll": Entry(PeFLL, "an embedding network describes clients to a hypernetwork"),
    "odpfl-hn": Entry(ODPFLHN, "the same without labels in the description"),
    "fedweit": Entry(FedWeIT, "a shared base under a mask, a sparse part of its own, those of a few others"),
    "fedclass": Entry(FedCLASS, "one model for everyone, taught by the one of the step before"),
    "fedclass-local-head": Entry(
        FedCLASS, "fedclass with a last layer of its own per client", {"local_head": True, "statistics": "own"}
    ),
    "hr": Entry(HR, "an autoencoder with fixed class centroids; the server replays codes of clients"),
    "hr-local-head": Entry(
        HR,
        "the same encoder, a last layer of its own for every client",
        {"local_head": True, "statistics": "own", "attraction": 1.0, "scale": 1000.0},  # tuned: the head leads
    ),
    "pfeddsh": Entry(PFedDSH, "a common model with versions, each client's label prior, guard", existing="guard"),
    "pfeddsh-unguarded": Entry(PFedDSH, "ablation: everyone takes every version"),
    "pfeddsh-deviation": Entry(
        PFedDSH, "ablation: each client also keeps a part of its own training", {"rate": 0.1}, existing="guard"
    ),
    "pfeddsh-counted": Entry(
        PFedDSH, "ablation: versions follow a step by the number of newcomers alone", {"ask": False}, existing="guard"
    ),
    "pfeddsh-replay": Entry(
        PFedDSH, "with data-free replay of the common model", {"replay": "common"}, existing="guard"
    ),
    "pfeddsh-hyper": Entry(HyperDSH, "deviations made by a hypernetwork, protected by projection", existing="guard"),
    "pfeddsh-hyper-gate": Entry(
        HyperDSH, "the same, protected by the paper's masks", {"protection": "gate"}, existing="guard"
    ),
    "pfeddsh-hyper-snapshot": Entry(
        HyperDSH, "the same, the server keeps every deviation", {"protection": "snapshot"}, existing="guard"
    ),
    "pfeddsh-hyper-unprotected": Entry(HyperDSH, "the same, nothing protected, no guard", {"protection": "none"}),
    "pfeddsh-paper": Entry(
        HyperDSH,
        "as the paper writes it, where that can be run: masks, its replay, no common model, no label prior",
        {**REPLAY, "protection": "gate", "prior": False},
    ),
    "pfeddsh-paper-unmasked": Entry(
        HyperDSH, "the same without its masks: nothing is protected", {**REPLAY, "protection": "none", "prior": False}
    ),
    "pfeddsh-paper-gate": Entry(HyperDSH, "its masks alone, with the label prior", {**FIRST, "protection": "gate"}),
    "pfeddsh-paper-gate-replay": Entry(
        HyperDSH, "its masks and its replay, with the label prior", {**REPLAY, "protection": "gate"}
    ),
    "pfeddsh-paper-projection": Entry(HyperDSH, "its hypernetwork under our projection, with the prior", FIRST),
    "pfeddsh-paper-projection-replay": Entry(HyperDSH, "the same with its replay", REPLAY),
    "pfeddsh-paper-neither": Entry(
        HyperDSH, "its hypernetwork, no protection, no replay, with the prior", {**FIRST, "protection": "none"}
    ),
}


def _add_files() -> None:
    """The first complete method of each file that the table does not mention."""
    mentioned = {__name__, Method.__module__, *(entry.method.__module__ for entry in METHODS.values())}
    for info in iter_modules(methods.__path__, f"{methods.__name__}."):
        if info.name in mentioned:
            continue
        found = [part for part in vars(import_module(info.name)).values() if _complete(part, info.name)]
        name = info.name.rpartition(".")[2].replace("_", "-")
        for key, preset in {"": {}, **found[0].presets}.items() if found else ():
            METHODS[f"{name}-{key}" if key else name] = _entry(found[0], preset)


def _complete(part: object, module: str) -> bool:
    if not (isinstance(part, type) and issubclass(part, Method) and part.__module__ == module):
        return False
    return all(getattr(part, name) is not getattr(Method, name) for name in REQUIRED)


def _entry(method: type[Method], preset: Mapping[str, Any] | None = None) -> Entry:
    """A method that the table does not mention, as its class describes it."""
    summary = (method.__doc__ or "").strip().partition("\n")[0]
    return Entry(method, summary, preset or {}, method.later, method.existing)


_add_files()


def find(name: str) -> Entry:
    """What a name stands for: one of ours, an own class as `package.module:Class`, or one of an installed package."""
    if name in METHODS:
        return METHODS[name]
    if plugins.is_reference(name):
        return _own(name, plugins.load("method", name))
    others = offered()
    if name not in others:
        raise unknown("method", name, [*METHODS, *others])
    return _own(name, plugins.load_offered("method", others[name]))


def offered() -> dict[str, EntryPoint]:
    """Methods of installed packages; a name of ours stays ours."""
    return {name: entry for name, entry in plugins.offered(GROUP).items() if name not in METHODS}


def _own(name: str, found: object) -> Entry:
    """A class that is not ours, if it is a method."""
    if not (isinstance(found, type) and issubclass(found, Method)):
        raise UserError(f"method {name}: {found!r} is no class derived from pfeddsh.methods.base.Method")
    lacking = [part for part in REQUIRED if getattr(found, part) is getattr(Method, part)]
    if lacking:
        raise UserError(f"method {name}: it lacks {', '.join(lacking)}; README.md, 'Add a method', has an example")
    return _entry(found)


def create(name: str, options: Mapping[str, Any], task: Task) -> Method:
    entry = find(name)
    return entry.method(task, entry.method.Settings(**options))
