"""Models offered to clients and what became of them. An offer waits, on disk, until its client is next online."""

from pathlib import Path

from pfeddsh.errors import UserError
from pfeddsh.messages import Message, Record, bundle, by_client, per_client, unbundle
from pfeddsh.storage.files import Damaged, read_record, write_record

PENDING, ACCEPTED, DECLINED, REPLACED = "pending", "accepted", "declined", "replaced"


class Offers:
    """At most one offer per client is pending: that of the latest step."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._message: dict[int, Message] = {}  # of the pending offers
        self._fate: dict[int, dict[int, str]] = {}  # client -> step -> what became of the offer
        if path.exists():
            try:
                parts = unbundle(read_record(path))
            except Damaged as error:
                raise UserError(f"{error}; restore it from a backup, or remove it: its offers are then lost") from error
            self._message = by_client(parts, "offer")
            for client, fates in parts["fate"].facts.items():
                self._fate[int(client)] = {int(step): fate for step, fate in fates.items()}

    def make(self, step: int, offers: dict[int, Message]) -> None:
        """New offers replace pending ones. Making them again, after an interruption, changes nothing."""
        for client, message in offers.items():
            fates = self._fate.setdefault(client, {})
            if fates.get(step, PENDING) == PENDING:
                self._withdraw(client)
                self._message[client], fates[step] = message, PENDING
        self._save()

    def answer(self, step: int, client: int, accepted: bool) -> bool:
        """Note the answer; False if the offer was no longer pending."""
        fates = self._fate.get(client, {})
        if fates.get(step) != PENDING:
            return False
        fates[step] = ACCEPTED if accepted else DECLINED
        del self._message[client]
        self._save()
        return True

    def drop(self, client: int) -> None:
        """Nothing is offered any more to a client that was turned away."""
        if client in self._message:
            self._withdraw(client)
            self._save()

    def forget(self, client: int) -> None:
        """A client has left: neither its offer nor what became of earlier ones stays."""
        self._message.pop(client, None)
        if self._fate.pop(client, None) is not None:
            self._save()

    def _withdraw(self, client: int) -> None:
        if self._message.pop(client, None) is not None:
            self._fate[client][max(self._fate[client])] = REPLACED

    @property
    def pending(self) -> dict[int, tuple[int, Message]]:
        """By client: the step and the offer."""
        return {client: (max(self._fate[client]), message) for client, message in self._message.items()}

    def last(self, client: int) -> str:
        """What became of the client's latest offer: none, pending, accepted or declined."""
        fates = self._fate.get(client)
        fate = fates[max(fates)] if fates else "none"
        return "none" if fate == REPLACED else fate

    def counts(self) -> dict[str, int]:
        fates = [fate for own in self._fate.values() for fate in own.values()]
        return {"made": len(fates), **{fate: fates.count(fate) for fate in (ACCEPTED, DECLINED, PENDING)}}

    def _save(self) -> None:
        write_record(self._path, bundle({**per_client("offer", self._message), "fate": Record(facts=self._fates())}))

    def _fates(self) -> dict[str, dict[str, str]]:
        """As JSON has it, whose keys are strings."""
        return {str(k): {str(step): fate for step, fate in fates.items()} for k, fates in self._fate.items()}
