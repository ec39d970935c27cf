"""A site whose worker spoils its uploads in some rounds: `python faulty_site.py HOME join`, with HOME/faults.json."""

import json
import sys
from pathlib import Path

import torch
from live_sites import tampered

from pfeddsh.live.site.calls import Site
from pfeddsh.live.site.join import join
from pfeddsh.live.site.worker import main
from pfeddsh.live.wire import decode
from pfeddsh.messages import Message


def spoil(kind: str, message: Message) -> None:
    name = next(iter(message.tensors))
    if kind == "nan":
        message[name][0] = float("nan")
    elif kind == "shape":
        message[name] = message[name][:-1].clone()
    elif kind == "size":
        message["more"] = torch.zeros(2_000_000)
    elif kind == "huge":
        message["more"] = torch.zeros(100_000_000)


class Faulty(Site):
    """`faults.json` maps a round of step 1 to what is done to the upload."""

    def answer(self, body: bytes) -> bytes:
        header, _ = decode(body)
        faults = json.loads((self.home / "faults.json").read_text())
        kind = faults.get(str(header["visit"]["round"])) if header["job"] == "local" else None
        answer = super().answer(body)
        return tampered(answer, lambda message: spoil(kind, message)) if kind else answer


if __name__ == "__main__":
    home, role = Path(sys.argv[1]), sys.argv[2]
    if role == "join":
        join(home, print, worker=[sys.executable, __file__, str(home), "worker"])
    else:
        main(home, Faulty)
