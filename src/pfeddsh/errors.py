"""Errors a user can act on: what was wrong, where, and what to do. The command line prints them without a traceback."""

from collections.abc import Iterable
from difflib import get_close_matches


class UserError(Exception):
    """A mistake in the input or the surroundings, not in the program."""


def unknown(kind: str, name: str, valid: Iterable[str]) -> UserError:
    """An error for a name that does not exist, with the nearest names that do."""
    names = sorted(valid)
    near = get_close_matches(name, names, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else f"valid: {', '.join(names)}"
    return UserError(f"unknown {kind} '{name}'; {hint}")
