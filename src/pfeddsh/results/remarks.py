"""What a reader of results must be told besides the numbers: refused uploads, clients left out, warnings."""

from collections.abc import Mapping
from typing import Any


def remarks(results: Mapping[str, Any]) -> list[str]:
    """One line each; results of older versions tell less.

    >>> remarks({"refused": {"uploads": 3}, "uploads": {"sent": 60, "refused_for": {"delta is not finite": 3}}})
    ['3 of 60 uploads were refused (delta is not finite)']
    """
    refused, uploads = results.get("refused") or {}, results.get("uploads") or {}
    found = []
    if count := refused.get("uploads"):
        of = f" of {uploads['sent']}" if "sent" in uploads else ""
        reasons = list(uploads.get("refused_for") or ())
        why = f" ({reasons[0]}{' and others' * (len(reasons) > 1)})" if reasons else ""
        found.append(f"{count}{of} uploads were refused{why}")
    for client, reason in (refused.get("clients") or {}).items():
        found.append(f"client {client} was turned away: {reason}")
    return found + [f"step {each['step']}: {each['reason']}" for each in results.get("warnings") or ()]
