"""Models offered to clients and what became of them. An offer waits, on disk, until its client is next online."""

from pathlib import Path

from pfeddsh.errors import UserError
from pfeddsh.messages import Message, Record, bundle, unbundle
from pfeddsh.storage.files import Damaged, read_record, write_record

PENDING, ACCEPTED, DECLINED, REPLACED = "pending", "accepted", "declined", "replaced"


class Offers:
    """At most one offer per client is pending: that of the latest step."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._pending: dict[int, tuple[int, Message]] = {}
        self._fate: dict[str, str] = {}  # "step/client" -> what became of the offer
        if path.exists():
            try:
                parts = unbundle(read_record(path))
            except Damaged as error:
                raise UserError(f"{error}; restore it from a backup, or remove it: its offers are then lost") from error
            self._fate = parts.pop("fate").facts
            for key, message in parts.items():
                step, client = map(int, key.split("/"))
                self._pending[client] = (step, message)

    def make(self, step: int, offers: dict[int, Message]) -> None:
        """New offers replace pending ones. Making them again, after an interruption, changes nothing."""
        for client, message in offers.items():
            if self._fate.get(f"{step}/{client}", PENDING) != PENDING:
                continue
            if client in self._pending and self._pending[client][0] < step:
                self._fate[f"{self._pending[client][0]}/{client}"] = REPLACED
            self._pending[client] = (step, message)
            self._fate[f"{step}/{client}"] = PENDING
        self._save()

    def answer(self, step: int, client: int, accepted: bool) -> bool:
        """Note the answer; False if the offer was no longer pending."""
        if self._fate.get(f"{step}/{client}") != PENDING:
            return False
        self._fate[f"{step}/{client}"] = ACCEPTED if accepted else DECLINED
        del self._pending[client]
        self._save()
        return True

    def drop(self, client: int) -> None:
        """Nothing is offered any more to a client that was turned away."""
        if client in self._pending:
            step, _ = self._pending.pop(client)
            self._fate[f"{step}/{client}"] = REPLACED
            self._save()

    @property
    def pending(self) -> dict[int, tuple[int, Message]]:
        return dict(self._pending)

    def last(self, client: int) -> str:
        """What became of the client's latest offer: none, pending, accepted or declined."""
        steps = [int(key.split("/")[0]) for key in self._fate if key.split("/")[1] == str(client)]
        fate = self._fate[f"{max(steps)}/{client}"] if steps else "none"
        return "none" if fate == REPLACED else fate

    def counts(self) -> dict[str, int]:
        fates = list(self._fate.values())
        return {"made": len(fates), **{fate: fates.count(fate) for fate in (ACCEPTED, DECLINED, PENDING)}}

    def _save(self) -> None:
        parts = {f"{step}/{client}": message for client, (step, message) in self._pending.items()}
        write_record(self._path, bundle({**parts, "fate": Record(facts=dict(self._fate))}))
