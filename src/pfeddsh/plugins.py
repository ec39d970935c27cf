"""Parts of one's own, by name: `package.module:name`, `file.py:name`, or an entry point of an installed package.

Every process that needs such a part imports it by that name, so it must live in a module or a script. One that is
defined in a notebook exists in that process alone, until a cell with `%%writefile` has put it into a file.
"""

import hashlib
import os
import re
import sys
import sysconfig
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from secrets import token_hex
from types import ModuleType
from typing import Any

from pfeddsh.errors import UserError, unknown

MAIN = "__main__"
KNOWN = frozenset({"pfeddsh", "torch"})  # packages whose code counts by other means
ADVICE = "write it to a file, with %%writefile mine.py as the first line of its cell, and name it mine:{name}"


def is_reference(name: str) -> bool:
    return ":" in name


def file_name(name: str) -> str:
    """A name as a part of a file's: `code/mine.py:Mine` has characters that are none."""
    return re.sub(r"[^\w.+=-]+", ".", name).strip(".")


def reference(part: Any) -> str:
    """The name under which other processes find this class or function; a script's is found by the script's file."""
    name = getattr(part, "__qualname__", None)
    if name is None:
        how = "write a function at the top of a module instead: def network(classes, shape): return ..."
        raise UserError(f"a {type(part).__name__} has no name by which other processes could find it; {how}")
    if "<" in name:
        raise UserError(f"{name} cannot be found by its name; define it at the top of a module, as a function or class")
    script = _script() if part.__module__ == MAIN else None
    return f"{script or part.__module__}:{name}"


def _script() -> Path | None:
    """The file that is running as a script, if any."""
    file = getattr(sys.modules[MAIN], "__file__", None)
    return None if file is None else Path(file).resolve()


def importable_elsewhere(name: str, otherwise: str = "") -> None:
    """Raise unless processes other than this one can import the part; `otherwise` is what else one could do."""
    module, _, attribute = name.rpartition(":")
    if module == MAIN:
        where = "the notebook or session that is running, which other processes cannot import"
        raise UserError(f"{attribute} is of {where}; {ADVICE.format(name=attribute)}{otherwise}")


def load(kind: str, name: str) -> Any:
    """What `package.module:name` or `file.py:name` stands for; `kind` says in errors what was wanted."""
    module, _, attribute = name.rpartition(":")
    file = module.endswith(".py")
    parts = attribute.split(".") if file else [*module.split("."), *attribute.split(".")]
    if not all(part.isidentifier() for part in parts):
        raise UserError(f"{kind} {name}: write package.module:name or file.py:name")
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)  # as `python script.py` and `python -m` would have it
    if file and not Path(module).is_file():
        raise UserError(f"{kind} {name}: there is no file {Path(module).absolute()}")
    with _importing(kind, name, module):
        found: Any = _module(name)
    for part in attribute.split("."):
        if not hasattr(found, part):
            if module == MAIN:
                advice = ADVICE.format(name=attribute)
                raise UserError(f"{kind} {name} is of a notebook, which this process cannot import; {advice}")
            public = [given for given in vars(found) if not given.startswith("_")]
            raise UserError(f"{kind} {name}: {unknown('name', part, public)} (in {module})")
        found = getattr(found, part)
    return found


def _module(name: str) -> ModuleType:
    """The module that a reference names."""
    module = name.rpartition(":")[0]
    return _import_file(Path(module).resolve()) if module.endswith(".py") else import_module(module)


_files: list[Path] = []  # that are being imported now


def _import_file(path: Path) -> ModuleType:
    """A module of this file alone, under a name that is the same in every process; the script that runs is itself."""
    if path == _script():
        return sys.modules[MAIN]
    name = f"pfeddsh_own_{hashlib.sha256(str(path).encode()).hexdigest()[:12]}"
    if name not in sys.modules:
        found = spec_from_file_location(name, path)
        assert found is not None and found.loader is not None
        sys.modules[name] = module = module_from_spec(found)
        _files.append(path)
        try:
            found.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
        finally:
            _files.pop()
    return sys.modules[name]


def not_while_importing() -> None:
    """Raise if a script that is imported for what it defines starts a run: every worker of that run would, too."""
    if _files:
        raise UserError(f"{_files[-1]} starts a run when it is imported; put that below `if __name__ == '__main__':`")


def offered(group: str) -> dict[str, EntryPoint]:
    """What installed packages offer, by name."""
    return {entry.name: entry for entry in entry_points(group=group)}


def load_offered(kind: str, entry: EntryPoint) -> Any:
    with _importing(kind, entry.name, entry.module):
        return entry.load()


@contextmanager
def _importing(kind: str, name: str, module: str) -> Iterator[None]:
    """Whatever goes wrong in the user's module is told with its place, and keeps its traceback as the cause."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise UserError(_trouble(kind, name, module, error)) from error
        raise UserError(
            f"{kind} {name}: there is no module {error.name} in {Path.cwd()} or on Python's path; "
            "start in its folder, or set PYTHONPATH to it"
        ) from None
    except (Exception, SystemExit) as error:
        raise UserError(_trouble(kind, name, module, error)) from error


def _trouble(kind: str, name: str, module: str, error: BaseException) -> str:
    here = Path(__file__).parent
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "importlib" not in frame.filename]
    own = [frame for frame in frames if here not in Path(frame.filename).parents]  # none: a SyntaxError names its line
    place = f" ({own[-1].filename}, line {own[-1].lineno})" if own else ""
    return f"{kind} {name}: {module} cannot be imported: {type(error).__name__}: {error}{place}"


def python_path() -> str:
    """PYTHONPATH for processes we start: they find modules where this one does. What Python brings is left out."""
    own = [Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    places = dict.fromkeys(Path(path).absolute() for path in sys.path)
    return os.pathsep.join(str(place) for place in places if not any(place.is_relative_to(path) for path in own))


def foreign_code(part: Any, name: str = "") -> list[str]:
    """Digests of the code around a function or class, its bases and the module of this reference to it, if not ours.

    Whoever edits it must not meet what its old form has left. What a notebook defines may change at any moment, so its
    digest is another one each time: nothing is shared.
    """
    parts = part.__mro__ if isinstance(part, type) else (part,)
    modules = [sys.modules[own.__module__] for own in parts] + ([_module(name)] if name else [])
    known = KNOWN | sys.stdlib_module_names
    others = [module for module in dict.fromkeys(modules) if module.__name__.partition(".")[0] not in known]
    return [_around(module) if getattr(module, "__file__", None) else token_hex() for module in others]


@cache
def _around(module: ModuleType) -> str:
    """A digest of its whole package; or of every module in its folder, and of the packages beside it.

    It is taken once, as the code is imported once: what is edited later is not what runs.
    """
    top = getattr(sys.modules.get(module.__name__.partition(".")[0]), "__path__", None)
    here = Path(str(module.__file__)).parent
    folders = [Path(folder) for folder in top] if top else [path.parent for path in here.glob("*/__init__.py")]
    files = {path for folder in folders for path in folder.rglob("*.py")} | (set() if top else set(here.glob("*.py")))
    sha = hashlib.sha256()
    for path in sorted(files):
        sha.update(f"{path.name}\n".encode() + path.read_bytes())
    return sha.hexdigest()
