"""Records in files: tensors as safetensors, facts beside them, and a checksum over both."""

import hashlib
import json
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError, safe_open

from pfeddsh.messages import Record, parsed, separate
from pfeddsh.storage.files import replacing


class Damaged(Exception):
    """A file whose content is not what was written."""


def digest(record: Record) -> str:
    """A checksum of everything in a record."""
    sha = hashlib.sha256(json.dumps(record.facts, sort_keys=True).encode())
    for name in sorted(record.tensors):
        tensor = record.tensors[name].contiguous()
        sha.update(f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
        if tensor.numel():
            sha.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return sha.hexdigest()


def write_record(path: Path, record: Record, durable: bool = True) -> None:
    """Store a record as safetensors with a checksum."""
    metadata = {"facts": json.dumps(record.facts), "sha256": digest(record)}
    with replacing(path, durable) as temporary:
        try:
            safetensors.torch.save_file(separate(record.tensors), temporary, metadata)
        except SafetensorError as error:
            raise OSError(str(error)) from error


def read_record(path: Path) -> Record:
    """Read a record back; a truncated or altered file is `Damaged`."""
    try:
        with safe_open(path, "pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118 (not a dict)
        record = Record(tensors, parsed(metadata["facts"]))
        expected = metadata["sha256"]
        sound = isinstance(record.facts, dict) and digest(record) == expected
    except Exception as error:  # of whatever kind: the file is not what was written
        raise Damaged(f"{path} cannot be read: {str(error)[:200]}") from error
    if not sound:
        raise Damaged(f"{path} does not match its checksum")
    return record


def read_facts(path: Path) -> dict[str, Any]:
    """The facts of a record alone, unchecked."""
    try:
        with safe_open(path, "pt") as file:
            found: dict[str, Any] = parsed((file.metadata() or {})["facts"])
    except Exception as error:  # of whatever kind: the file is not what was written
        raise Damaged(f"{path} cannot be read: {str(error)[:200]}") from error
    return found
