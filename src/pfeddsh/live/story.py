"""What happens in the demonstration, in sentences: made from status.json, as anybody could who watches it."""

from collections.abc import Callable, Sequence
from typing import Any

Status = dict[str, Any]


class Story:
    """Tells each thing once, in the order in which it happens."""

    def __init__(self, say: Callable[[str], None], late: Sequence[str]) -> None:
        self._say, self._late = say, late
        self._told: set[object] = set()

    def begin(self, names: Sequence[str], images: int) -> None:
        self._say(
            f"A coordinator starts, and three sites join: {_list(names)}. Each has {images} images of digits, most of "
            "them of four digits. No image will leave its site."
        )

    def arrive(self) -> None:
        self._say(f"{_list(self._late)} arrive late. They wait until the step under way is over.")

    def tell(self, status: Status) -> None:
        self._rounds(status)
        for client in status["clients"]:
            self._first_step(client)
            self._served_at_once(client)
            self._after_its_step(client)
        for client in status["clients"]:
            self._answered(client, status)

    def _rounds(self, status: Status) -> None:
        place = status["step"], status["round"]
        if status["phase"] == "training" and status["round"] and self._new("round", *place):
            self._say(f"Step {status['step']}: round {status['round']} of {status['rounds']} is done.")

    def _first_step(self, client: Status) -> None:
        if client["batch"] == 1 and _known(client, "accuracy", "accuracy_alone") and self._new("first", client["name"]):
            self._say(
                f"{_name(client)} is served: {client['accuracy_first']:.0f} % right on images it has not seen. "
                f"Training alone, with the same effort: {client['accuracy_alone']:.0f} %."
            )

    def _served_at_once(self, client: Status) -> None:
        if client["batch"] > 1 and _known(client, "accuracy_zero_shot") and self._new("zero", client["name"]):
            self._say(
                f"{_name(client)} is served at once, before its first round: {client['accuracy_zero_shot']:.0f} %. "
                "It gets the common model, adds how often it sees each digit, and has trained nothing yet."
            )

    def _after_its_step(self, client: Status) -> None:
        known = _known(client, "accuracy", "accuracy_alone", "accuracy_zero_shot")
        if client["batch"] > 1 and known and self._new("later", client["name"]):
            self._say(
                f"{_name(client)} after its step: {client['accuracy_first']:.0f} %. It was served "
                f"{client['accuracy_zero_shot']:.0f} % from the start; training alone ends at "
                f"{client['accuracy_alone']:.0f} %."
            )

    def _answered(self, client: Status, status: Status) -> None:
        """Once the accuracy after the answer is known too, which is when the step is over."""
        answer = client["offer"]
        over = len(status["ri"]) > 1 and status["ri"][-1] is not None
        if answer not in ("accepted", "declined") or not over or not self._new("offer", client["name"]):
            return
        if answer == "accepted":
            gain = client["accuracy"] - client["accuracy_first"]
            self._say(
                f"{_name(client)}, which was here before, is offered the new version, finds it better by its own "
                f"images and accepts: {client['accuracy_first']:.0f} % becomes {client['accuracy']:.0f} % "
                f"({gain:+.1f} points), without a step of training."
            )
        else:
            self._say(f"{_name(client)} is offered it too, does not find it better, and keeps its model to the bit.")

    def _new(self, *what: object) -> bool:
        fresh = what not in self._told
        self._told.add(what)
        return fresh


def _known(client: Status, *names: str) -> bool:
    return all(client.get(name) is not None for name in names)


def _name(client: Status) -> str:
    return str(client["name"]).capitalize()


def _list(names: Sequence[str]) -> str:
    """
    >>> _list(["amsterdam", "bergen", "cork"])
    'Amsterdam, Bergen and Cork'
    """
    shown = [name.capitalize() for name in names]
    return f"{', '.join(shown[:-1])} and {shown[-1]}"
