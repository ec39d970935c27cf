"""Values from outside: read from TOML, overridden on the command line, checked; every mistake is told in one line."""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from pfeddsh.errors import UserError, unknown

GROUPS = ("options", "privacy")  # keys that have keys of their own

Checked = TypeVar("Checked", bound=BaseModel)


def checked(model: type[Checked], values: Mapping[str, Any], where: str, kind: str = "key", hint: str = "") -> Checked:
    """The model made of these values, or an error that names each wrong key; `hint` ends the one for an unknown key."""
    if wrong := unknown_key(model, values, kind):
        raise UserError(f"{where}: {wrong}{hint}")
    try:
        return model(**values)
    except ValidationError as error:
        raise UserError(f"{where}: {explained(error)}") from None
    except WrongValue as error:
        raise UserError(f"{where}: {error}") from None


def unknown_key(model: type[BaseModel], values: Mapping[str, Any], kind: str = "key") -> str:
    """What to say of the first key that the model does not have; nothing if it has them all."""
    for key, value in values.items():
        if key not in model.model_fields:
            return str(unknown(kind, key, model.model_fields))
        part = model.model_fields[key].annotation  # perhaps a group of keys
        if (
            isinstance(value, Mapping) and isinstance(part, type) and issubclass(part, BaseModel)
            and (wrong := unknown_key(part, value, kind))
        ):  # fmt: skip
            return f"{key}: {wrong}"
    return ""


class WrongValue(UserError):
    """A wrong value found by a model that explains its own mistakes; whoever read the values knows where they were."""


def explained(error: ValidationError) -> str:
    """Every wrong key with what is wrong about it, in one line."""
    lines = [f"{'.'.join(str(part) for part in e['loc']) or 'value'}: {e['msg']}" for e in error.errors()]
    return "; ".join(lines).replace("Value error, ", "")


def read(path: Path) -> dict[str, Any]:
    """The values of a TOML file."""
    try:
        return tomllib.loads(path.read_text())
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or error}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: not valid TOML: {error}") from None


def override(values: dict[str, Any], assignments: list[str]) -> dict[str, Any]:
    """Apply `key=value` and `group.key=value` from the command line; values are TOML, bare words are strings."""
    result = dict(values)
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        if not equals:
            raise UserError(f"--set {assignment}: write key=value")
        try:
            value = tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            value = text
        group, dot, name = key.strip().partition(".")
        if dot and group in GROUPS:
            inner = result.get(group, {})
            result[group] = {**inner, name: value} if isinstance(inner, dict) else inner
        else:
            result[key.strip()] = value
    return result
