"""Whose signature a site trusts. `join` reads this for months, so it imports neither torch nor Flower."""

import hashlib
import os
from pathlib import Path

import yaml
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import load_ssh_public_key

from pfeddsh.errors import UserError

TRUSTED = "trusted.yaml"


def trust(home: Path, public: Path) -> None:
    """From now on the site in `home` runs only what this key has signed."""
    line = read_trusted(public)
    temporary = home / f".{TRUSTED}.tmp"
    temporary.write_text(yaml.safe_dump({key_id(line): line.decode()}))
    os.replace(temporary, home / TRUSTED)


def read_trusted(public: Path) -> bytes:
    """The line of a public key that can be trusted with signing."""
    try:
        line = public.read_bytes().strip()
    except OSError as error:
        raise UserError(f"cannot read {public}: {error.strerror}") from error
    read_signer(line, str(public))
    return line


def key_id(line: bytes) -> str:
    """By what Flower calls a key that signs: the same at the coordinator and at the site, whatever its comment."""
    return "fpk_" + hashlib.sha256(line.split()[1]).hexdigest()[:32]


def read_signer(line: bytes, where: str) -> Ed25519PublicKey:
    """A public key of the kind that Flower checks signatures with."""
    try:
        key = load_ssh_public_key(line)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise UserError(f"{where} is not a public key ({error})") from error
    if not isinstance(key, Ed25519PublicKey):
        raise UserError(
            f"{where} is not an Ed25519 public key: ask the operator for the .pub that `pfeddsh sign` names"
        )
    return key
