"""All that the federation knows of the network: who is there, hand over messages, ask for replies."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from flwr.serverapp import Grid


class TransportError(Exception):
    """The network itself is gone, as opposed to one node of it."""


@dataclass(frozen=True)
class Node:
    """A node that is online. Without authentication `key` is the node's for this process only."""

    id: int
    key: str
    name: str = ""


@dataclass(frozen=True)
class Answer:
    """The reply to a message, or why there will be none."""

    message: str
    body: bytes | None
    error: str = ""


class Transport(Protocol):
    """Messages are bytes; each is answered at most once, in any order, or never."""

    def nodes(self) -> list[Node]: ...
    def push(self, bodies: Sequence[tuple[int, bytes]], ttl: float) -> list[str | None]: ...
    def pull(self, messages: Iterable[str]) -> list[Answer]: ...


class FlowerTransport:
    """Flower's Grid. Bodies travel as arrays of bytes, which Flower cuts into pieces where they are large."""

    def __init__(self, grid: "Grid") -> None:
        self._grid = grid

    def nodes(self) -> list[Node]:
        from pfeddsh.live.security.certs import fingerprint

        found = self._grid.get_nodes()
        return [Node(node.node_id, fingerprint(node.public_key), node.name) for node in found]

    def push(self, bodies: Sequence[tuple[int, bytes]], ttl: float) -> list[str | None]:
        from flwr.app import Array, ArrayRecord, Message, MessageType, RecordDict

        messages = [
            Message(
                RecordDict({"call": ArrayRecord({"body": Array("uint8", (len(body),), "bytes", body)})}),
                dst_node_id=node,
                message_type=MessageType.QUERY,
                ttl=ttl,
            )
            for node, body in bodies
        ]
        return [message or None for message in self._grid.push_messages(messages)]

    def pull(self, messages: Iterable[str]) -> list[Answer]:
        answers = []
        for reply in self._grid.pull_messages(list(messages)):
            message = reply.metadata.reply_to_message_id  # the sender of an error is Flower, not the node
            if reply.has_error():
                answers.append(Answer(message, None, f"Flower's error {reply.error.code}: {reply.error.reason}"))
                continue
            try:
                body = reply.content.array_records["reply"]["body"].data
                answers.append(Answer(message, body))
            except (KeyError, AttributeError, TypeError):
                answers.append(Answer(message, b""))  # not our client app; refused when decoded
        return answers
