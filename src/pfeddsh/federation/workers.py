"""Worker processes of the pool: what goes over their channels, and their side of it. `forker.py` starts them."""

import json
import socket
import traceback
import warnings
from dataclasses import asdict

import torch

from pfeddsh.config import Config
from pfeddsh.errors import UserError
from pfeddsh.federation.allocation import keep_freed_memory
from pfeddsh.federation.channel import Channel
from pfeddsh.federation.forker import alive, dismiss, fork
from pfeddsh.federation.workbench import Call, Workbench
from pfeddsh.messages import Memory, Message
from pfeddsh.methods.task import Visit

Reply = tuple[Message, Memory]


def pack(call: Call) -> list[bytes]:
    header = json.dumps({"job": call.job, "visit": asdict(call.visit)}).encode()
    return [header, call.message.encode(), call.memory.encode()]


def unpack(frames: list[bytes]) -> Call:
    header = json.loads(frames[0])
    return Call(header["job"], Visit(**header["visit"]), Message.decode(frames[1]), Memory.decode(frames[2]))


class WorkerError(Exception):
    """Work failed in a worker process; carries that process's traceback."""


class Worker:
    """The parent's end of one worker process."""

    def __init__(self, config: Config) -> None:
        self.pid, ours = fork("pfeddsh.federation.workers:serve")
        self._channel = Channel(ours)
        try:
            self._channel.send(config.model_dump_json())
            if trouble := self._channel.receive()[0]:
                raise UserError(f"a worker process cannot begin: {trouble}")
        except Exception:
            self.close()
            raise

    def run(self, call: Call) -> Reply:
        self._channel.send({"job": call.job, "visit": asdict(call.visit)}, call.message, call.memory)
        trouble, reply = self._channel.receive()
        if trouble:
            raise WorkerError(f"{call} failed in a worker:\n{trouble}")
        message, memory = reply
        return message, memory

    @property
    def alive(self) -> bool:
        return alive(self.pid)

    def close(self) -> None:
        """Without its channel a worker leaves by itself."""
        self._channel.close()
        dismiss(self.pid)


# In the worker


def serve(handle: int) -> None:
    """The worker's side: run calls until the parent is gone."""
    channel = Channel(socket.socket(fileno=handle))
    torch.set_num_threads(1)
    keep_freed_memory()
    try:
        with warnings.catch_warnings(action="ignore"):  # the parent has said it all
            bench = Workbench(Config(**json.loads(channel.receive()[0])))
    except Exception as error:
        channel.send(trouble_with(error))
        return
    channel.send("")
    while True:
        header, (message, memory) = channel.receive()
        try:
            channel.send("", *bench.run(Call(header["job"], Visit(**header["visit"]), message, memory)))
        except Exception:  # of the work, or of what came of it and cannot be sent
            channel.send(traceback.format_exc())


def answer(bench: Workbench, frames: list[bytes]) -> list[bytes]:
    """The reply to a packed call: an empty frame, message and memory; or why there is none."""
    try:
        return [b"", *(part.encode() for part in bench.run(unpack(frames)))]
    except Exception:
        return [traceback.format_exc().encode()]


def read(call: Call, frames: list[bytes]) -> Reply:
    """What an answer says."""
    if frames[0]:
        raise WorkerError(f"{call} failed in a worker:\n{frames[0].decode()}")
    return Message.decode(frames[1]), Memory.decode(frames[2])


def trouble_with(error: Exception) -> str:
    """Why a worker cannot begin, such as a method of the user's that cannot be imported there."""
    return str(error) if isinstance(error, UserError) else traceback.format_exc()
