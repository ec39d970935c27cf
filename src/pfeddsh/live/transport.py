"""All that the federation knows of the network: who is there, hand over messages, ask for replies."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from pfeddsh.errors import UserError
from pfeddsh.live.security.certs import fingerprint

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
    """The reply to a message, or why there will be none: an error of the network's, or a reply that is refused."""

    message: str
    body: bytes | None
    error: str = ""
    refused: str = ""
    node: int | None = None  # who sent it, if the network knows


class Transport(Protocol):
    """Messages are bytes; each is answered at most once, in any order, or never."""

    def nodes(self) -> list[Node]: ...
    def push(self, bodies: Sequence[tuple[int, bytes]], ttl: float) -> list[str | None]: ...
    def pull(self, limits: Mapping[str, int]) -> list[Answer]:
        """Answers to these messages, as far as there are any; none of more bytes than its message allows."""


class FlowerTransport:
    """Flower's Grid. Bodies travel as arrays of bytes, which Flower cuts into pieces where they are large."""

    def __init__(self, grid: "Grid") -> None:
        from pfeddsh.live.flower_replies import Replies

        self._grid, self._replies = grid, Replies(grid)

    def nodes(self) -> list[Node]:
        """Who is online; a node whose key cannot be read is nobody."""
        found = []
        for node in self._grid.get_nodes():
            with suppress(UserError):
                found.append(Node(node.node_id, fingerprint(node.public_key), node.name))
        return found

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

    def pull(self, limits: Mapping[str, int]) -> list[Answer]:
        found = self._replies.pull(limits)
        return [Answer(reply.to, reply.body, reply.error, reply.refused, reply.node) for reply in found]
