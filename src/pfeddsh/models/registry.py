"""Networks by name: those in `zoo/`, those that installed packages offer, and anybody's own `package.module:factory`.

A factory is called with `classes=` and `shape=(channels, height, width)` and gives a `torch.nn.Module`, or a `Model`
whose arithmetic is written by hand. To ship one more network, add a file to `zoo/` whose `__all__` names its factories.
"""

import hashlib
import importlib
import inspect
from collections.abc import Callable, Collection, Sequence
from functools import cache
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

from pfeddsh import plugins
from pfeddsh.errors import UserError, unknown
from pfeddsh.models import zoo
from pfeddsh.models.base import Model, Shape
from pfeddsh.models.check import checked

Factory = Callable[..., Any]
GROUP = "pfeddsh.models"  # of entry points
DEFAULT = "lenet"
PLAIN = {"pfeddsh.models.lenet": "pfeddsh.models.plain_lenet"}  # where the arithmetic is written by hand


def shipped() -> dict[str, Factory]:
    """The networks of this package."""
    found: dict[str, Factory] = {}
    for info in iter_modules(zoo.__path__):
        file = importlib.import_module(f"{zoo.__name__}.{info.name}")
        found |= {name: getattr(file, name) for name in file.__all__}
    return found


def names() -> list[str]:
    """All that are known by a name here."""
    return sorted({*shipped(), *plugins.offered(GROUP)})


def find(spec: str, allowed: Collection[str] | None = None) -> Factory:
    """The factory of a name, of `package.module:factory` or of `file.py:factory`.

    `allowed`, for a specification that somebody else sent: the references that may be imported. Names always may.
    """
    if plugins.is_reference(spec):
        if allowed is not None and spec not in allowed:
            raise UserError(f"the model {spec} is code by reference; if you trust it, join with --allow {spec}")
        found = plugins.load("model", spec)
    elif (factory := shipped().get(spec)) is not None:
        found = factory
    elif (offer := plugins.offered(GROUP).get(spec)) is not None:
        found = plugins.load_offered("model", offer)
    else:
        hint = "" if "." not in spec else "; your own is written package.module:factory"
        raise UserError(f"{unknown('model', spec, names())}{hint}")
    if not callable(found) or not hasattr(found, "__qualname__"):
        how = "expected a function or class that makes a module: def network(classes, shape): return ..."
        raise UserError(f"model '{spec}' is a {type(found).__name__}; {how}")
    made: Factory = found
    return made


def create(
    spec: str, classes: int, shape: Sequence[int] | None = None, allowed: Collection[str] | None = None
) -> Model:
    """The network for so many classes and images of this shape, checked; a mistake is told in one line."""
    if shape is None:
        return checked(spec, find(spec, allowed), classes, None)
    channels, height, width = (*shape, 1, 1)[:3]  # a vector of features has one place
    return checked(spec, find(spec, allowed), classes, (int(channels), int(height), int(width)))


def fixed_shape(spec: str) -> Shape | None:
    """The one shape of images that a network takes, if its factory's `shape` has a default; they are fitted to it."""
    default = inspect.signature(find(spec)).parameters.get("shape")
    return default.default if default is not None and isinstance(default.default, tuple) else None


def source(spec: str) -> Path | None:
    """The file of a network as an ordinary module: a shipped one needs torch alone. None for those of packages."""
    place = spec.rpartition(":")[0]
    return Path(place) if place.endswith(".py") else _plain_file(plain(spec)) if spec in shipped() else None


def plain(spec: str) -> str:
    """`package.module:factory` that makes the network as an ordinary module."""
    factory = find(spec)
    place = PLAIN.get(factory.__module__, factory.__module__)
    return f"{place}:{factory.__qualname__}"


def _plain_file(place: str) -> Path:
    return Path(str(importlib.import_module(place.partition(":")[0]).__file__))


def code(spec: str) -> list[str]:
    """Digests of the code that makes a network. The default counts by the version of local training instead."""
    if spec == DEFAULT:
        return []
    factory, offer = find(spec), plugins.offered(GROUP).get(spec)
    if spec in shipped():
        return [_file(factory)]
    return [factory.__qualname__, *plugins.foreign_code(factory, spec if offer is None else offer.value)]


@cache
def _file(factory: Factory) -> str:
    """A digest of the file of a network that is ours."""
    return hashlib.sha256(Path(inspect.getfile(factory)).read_bytes()).hexdigest()


def identity(spec: str, init: Path | None) -> str | None:
    """A digest of which network this is and where it starts; None for the default, as before there was a choice."""
    if spec == DEFAULT and init is None:
        return None
    parts = [spec.encode()]
    if init is not None and init.exists():
        parts.append(_content(init, init.stat().st_mtime_ns))
    return hashlib.sha256(b"\n".join(hashlib.sha256(part).digest() for part in parts)).hexdigest()


@cache
def _content(path: Path, changed: int) -> bytes:
    return hashlib.sha256(path.read_bytes()).digest()
