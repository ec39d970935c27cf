"""Models offered to clients and what became of them. An offer waits, on disk, until its client is next online.

Each model is one file, named by its content, however many are offered it. What becomes of offers is a log that only
grows, a line an offer or answer; it is written anew, without what is past, when it is opened.
"""

import json
import os
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pfeddsh.errors import UserError
from pfeddsh.messages import Message, by_client, parsed, unbundle
from pfeddsh.storage.files import write_text
from pfeddsh.storage.records import Damaged, digest, read_record, write_record

PENDING, ACCEPTED, DECLINED, REPLACED = "pending", "accepted", "declined", "replaced"
LOG = "log.jsonl"


class Offers:
    """At most one offer per client is pending: that of the latest step."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._log = folder, folder / LOG
        folder.mkdir(parents=True, exist_ok=True)
        self._file: dict[int, str] = {}  # of the pending offers
        self._fate: dict[int, dict[int, str]] = {}  # client -> step -> what became of the offer
        self._count: Counter[str] = Counter()
        self._known: dict[str, Message] = {}  # the models of pending offers that were asked for
        self._read()
        self._rewrite()

    def make(self, step: int, offers: dict[int, Message]) -> None:
        """New offers replace pending ones. Making them again, after an interruption, changes nothing."""
        lines = []
        written: dict[int, str] = {}  # many are offered the same object
        for client, message in offers.items():
            if self._fate.get(client, {}).get(step, PENDING) != PENDING:
                continue
            file = written.get(id(message)) or self._write(message)
            written[id(message)] = file
            lines += self._withdrawn(client, step)
            lines.append(self._note(client, step, PENDING, file))
        self._append(lines)
        self._sweep()

    def answer(self, step: int, client: int, accepted: bool) -> bool:
        """Note the answer; False if the offer was no longer pending."""
        if self._fate.get(client, {}).get(step) != PENDING:
            return False
        self._append([self._note(client, step, ACCEPTED if accepted else DECLINED)])
        return True

    def drop(self, client: int) -> None:
        """Nothing is offered any more to a client that was turned away."""
        self._append(self._withdrawn(client))

    def forget(self, client: int) -> None:
        """A client has left: neither its offer nor what became of earlier ones stays."""
        self._file.pop(client, None)
        if (fates := self._fate.pop(client, None)) is not None:
            self._count.subtract(fates.values())
            self._rewrite()

    @property
    def pending(self) -> Iterable[int]:
        """Clients for whom an offer waits."""
        return self._file.keys()

    def of(self, client: int) -> tuple[int, Message]:
        """The step and the model of a pending offer."""
        file = self._file[client]
        if file not in self._known:
            self._known = {name: model for name, model in self._known.items() if name in set(self._file.values())}
            self._known[file] = self._load(file)
        return max(self._fate[client]), self._known[file]

    def last(self, client: int) -> str:
        """What became of the client's latest offer: none, pending, accepted or declined."""
        fates = self._fate.get(client)
        fate = fates[max(fates)] if fates else "none"
        return "none" if fate == REPLACED else fate

    def counts(self) -> dict[str, int]:
        return {"made": self._count.total(), **{fate: self._count[fate] for fate in (ACCEPTED, DECLINED, PENDING)}}

    # In memory

    def _note(self, client: int, step: int, fate: str, file: str = "") -> str:
        """Take note, and the line that says so."""
        fates = self._fate.setdefault(client, {})
        if step in fates:
            self._count[fates[step]] -= 1
        fates[step] = fate
        self._count[fate] += 1
        if fate == PENDING:
            self._file[client] = file
        else:
            self._file.pop(client, None)
        return json.dumps({"client": client, "step": step, "fate": fate} | ({"model": file} if file else {}))

    def _withdrawn(self, client: int, step: int | None = None) -> list[str]:
        """The pending offer of a client, unless it is of this step, will not be made."""
        before = max(self._fate.get(client, {}), default=None)
        if client not in self._file or before is None or before == step:
            return []
        return [self._note(client, before, REPLACED)]

    # On disk

    def _write(self, message: Message) -> str:
        file = f"{digest(message)[:32]}.safetensors"
        if not (self._folder / file).exists():
            write_record(self._folder / file, message)
        return file

    def _append(self, lines: list[str]) -> None:
        if not lines:
            return
        try:
            with self._log.open("a") as log:
                log.write("".join(line + "\n" for line in lines))
                log.flush()
                os.fsync(log.fileno())
        except OSError as error:
            raise UserError(f"cannot write {self._log}: {error.strerror or error}; free some space") from error

    def _rewrite(self) -> None:
        """One line for all that became of a client's offers, and nothing of models that wait for nobody."""
        lines = []
        for client, fates in self._fate.items():
            told: dict[str, Any] = {"client": client, "fates": {str(step): fate for step, fate in fates.items()}}
            lines.append(json.dumps(told | ({"model": self._file[client]} if client in self._file else {})))
        write_text(self._log, "".join(line + "\n" for line in lines))
        self._sweep()

    def _sweep(self) -> None:
        used = set(self._file.values())
        for path in self._folder.glob("*.safetensors"):
            if path.name not in used:
                path.unlink()

    def _read(self) -> None:
        older = self._folder.with_suffix(".safetensors")  # all in one file, as earlier versions had it
        if older.exists():
            self._take_over(older)
        lines = self._log.read_text().split("\n") if self._log.exists() else [""]
        for number, line in enumerate(lines[:-1], 1):  # what follows the last end of line was being written
            try:
                told = parsed(line)
                fates = told["fates"] if "fates" in told else {told["step"]: told["fate"]}
                for step, fate in fates.items():
                    self._note(int(told["client"]), int(step), str(fate), str(told.get("model", "")))
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise self._lost(f"{self._log}, line {number}, cannot be read ({error})") from error
        for file in set(self._file.values()):
            if not (self._folder / file).exists():
                raise self._lost(f"{self._folder / file} is missing")

    def _load(self, file: str) -> Message:
        try:
            return read_record(self._folder / file)
        except Damaged as error:
            raise self._lost(str(error)) from error

    def _lost(self, why: str) -> UserError:
        return UserError(f"{why}; restore {self._folder} from a backup, or remove it: its offers are then lost")

    def _take_over(self, older: Path) -> None:
        try:
            parts = unbundle(read_record(older))
        except Damaged as error:
            raise UserError(f"{error}; restore it from a backup, or remove it: its offers are then lost") from error
        waiting = by_client(parts, "offer")
        for client, fates in parts["fate"].facts.items():
            for step, fate in fates.items():
                file = self._write(waiting[int(client)]) if fate == PENDING else ""
                self._note(int(client), int(step), fate, file)
        self._rewrite()
        older.unlink()
