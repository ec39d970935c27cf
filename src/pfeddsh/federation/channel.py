"""Records over a socket between two of our own processes: the tensors' memory as it is, with no copy on either side.

A message of resnet18 has 45 MB; encoding, joining and decoding it costs more than the socket itself.
"""

import json
import socket
from typing import Any

import torch
from torch import Tensor

from pfeddsh.messages import Record

LENGTH = 8  # bytes that say how long the header is


class Channel:
    """One end of it. The other end may be gone: `EOFError` or `OSError`."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end

    def send(self, header: Any, *records: Record) -> None:
        """A header of JSON, and records after it. What cannot be sent raises before the first byte has left."""
        memory = [_memory(tensor.contiguous()) for record in records for tensor in record.tensors.values()]
        shapes = [
            [record.facts, [[name, _name(tensor.dtype), list(tensor.shape)] for name, tensor in record.tensors.items()]]
            for record in records
        ]
        text = json.dumps([header, shapes]).encode()
        self._socket.sendall(len(text).to_bytes(LENGTH, "little") + text)
        for part in memory:
            self._socket.sendall(part)

    def receive(self) -> tuple[Any, list[Record]]:
        """What the other end sent; each tensor has memory of its own, aligned alike wherever it arrives."""
        self._fill(memoryview(length := bytearray(LENGTH)))
        self._fill(memoryview(text := bytearray(int.from_bytes(length, "little"))))
        header, shapes = json.loads(text)
        records = []
        for facts, tensors in shapes:
            record = Record(facts=facts)
            for name, dtype, shape in tensors:
                record[name] = torch.empty(shape, dtype=getattr(torch, dtype))
                self._fill(_memory(record[name]))
            records.append(record)
        return header, records

    def _fill(self, rest: memoryview) -> None:
        while rest:
            got = self._socket.recv_into(rest, 0, socket.MSG_WAITALL)
            if not got:
                raise EOFError("the other end of the channel is closed")
            rest = rest[got:]

    def close(self) -> None:
        self._socket.close()


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _memory(tensor: Tensor) -> memoryview:
    """The bytes of a contiguous tensor, in place."""
    return tensor.reshape(-1).view(torch.uint8).numpy().data if tensor.numel() else memoryview(b"")
