"""Networks by name: those in `zoo/`, those that installed packages offer, and anybody's own `package.module:factory`.

A factory is called with `classes=` and `shape=(channels, height, width)` and gives a `torch.nn.Module`, or a `Model`
whose arithmetic is written by hand. To ship one more network, add a file to `zoo/` whose `__all__` names its factories.
"""

import hashlib
import importlib
import importlib.util
import inspect
import os
import sys
from collections.abc import Callable, Sequence
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

from pfeddsh.errors import UserError, unknown
from pfeddsh.models import zoo
from pfeddsh.models.base import Model
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
    return sorted({*shipped(), *(point.name for point in entry_points(group=GROUP))})


def find(spec: str, named_only: bool = False) -> Factory:
    """The factory of a name, of `package.module:factory` or of `file.py:factory`.

    `named_only` refuses what is not installed under a name: for a specification that somebody else sent.
    """
    if ":" in spec:
        if named_only:
            raise UserError(
                f"model '{spec}' is code by reference; only names are taken from others (entry point {GROUP})"
            )
        return _by_reference(spec)
    if (factory := shipped().get(spec)) is not None:
        return factory
    for point in entry_points(group=GROUP):
        if point.name == spec:
            loaded: Factory = point.load()
            return loaded
    hint = "" if "." not in spec else "; your own is written package.module:factory"
    raise UserError(f"{unknown('model', spec, names())}{hint}")


def _by_reference(spec: str) -> Factory:
    place, _, name = spec.rpartition(":")
    try:
        module = _from_file(Path(place)) if place.endswith(".py") else _from_package(place)
        factory: Any = module
        for part in name.split("."):
            factory = getattr(factory, part)
    except UserError:
        raise
    except Exception as error:  # whatever the user's module raises while it is imported
        hint = "; a notebook's own needs engine=serial, or a file" if place == "__main__" else ""
        raise UserError(f"model '{spec}' cannot be imported: {type(error).__name__}: {error}{hint}") from error
    if not callable(factory):
        raise UserError(
            f"model '{spec}' is a {type(factory).__name__}, expected a function or class that makes a module"
        )
    made: Factory = factory
    return made


def _from_package(place: str) -> Any:
    if (here := os.getcwd()) not in sys.path:
        sys.path.insert(0, here)  # as `python script.py` and `python -m` would have it
    return importlib.import_module(place)


def _from_file(path: Path) -> Any:
    if not path.exists():
        raise UserError(f"model: there is no file {path}")
    name = f"pfeddsh_model_{hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:12]}"
    if name not in sys.modules:
        found = importlib.util.spec_from_file_location(name, path)
        assert found is not None and found.loader is not None
        sys.modules[name] = module = importlib.util.module_from_spec(found)
        try:
            found.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
    return sys.modules[name]


def reference(factory: Factory) -> str:
    """How another process finds this object; what a script defines is found by the script's file."""
    name, place = getattr(factory, "__qualname__", ""), getattr(factory, "__module__", "")
    if not name or "<" in name:
        raise UserError("model: give a function or class that has a name of its own, not a lambda or a local function")
    if place == "__main__" and (file := getattr(sys.modules["__main__"], "__file__", None)):
        place = str(Path(file).resolve())
    return f"{place}:{name}"


def create(spec: str, classes: int, shape: Sequence[int] | None = None, named_only: bool = False) -> Model:
    """The network for so many classes and images of this shape, checked; a mistake is told in one line."""
    if shape is None:
        return checked(spec, find(spec, named_only), classes, None)
    channels, height, width = (*shape, 1, 1)[:3]  # a vector of features has one place
    return checked(spec, find(spec, named_only), classes, (int(channels), int(height), int(width)))


def source(spec: str) -> Path | None:
    """The file of a shipped network as an ordinary module, which needs torch alone; None for those of others."""
    return _plain_file(plain(spec)) if spec in shipped() else None


def plain(spec: str) -> str:
    """`package.module:factory` that makes the network as an ordinary module."""
    factory = find(spec)
    place = PLAIN.get(factory.__module__, factory.__module__)
    return f"{place}:{factory.__qualname__}"


def _plain_file(place: str) -> Path:
    return Path(str(importlib.import_module(place.partition(":")[0]).__file__))


def identity(spec: str, init: Path | None) -> str | None:
    """A digest of which network this is and where it starts; None for the default, as before there was a choice."""
    if spec == DEFAULT and init is None:
        return None
    parts = [spec.encode()]
    if ":" in spec and (source := inspect.getsourcefile(find(spec))) is not None:
        parts.append(Path(source).read_bytes())
    if init is not None and init.exists():
        parts.append(_content(init, init.stat().st_mtime_ns))
    return hashlib.sha256(b"\n".join(hashlib.sha256(part).digest() for part in parts)).hexdigest()


@cache
def _content(path: Path, changed: int) -> bytes:
    return hashlib.sha256(path.read_bytes()).digest()
