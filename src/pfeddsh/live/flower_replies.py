"""Replies from Flower, taken in piece by piece and never more of them than was asked for.

Flower's own `pull_messages` has no limit, rebuilds an array that names one piece a thousand times, waits for pieces
that never come, and ends at the first malformed object, whoever sent it. There is no public way around that, so this
file and `security.nodes` use modules of Flower that are not its API (flwr is pinned to one version).
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, PullObjectRequest
from flwr.proto.runtime_pb2 import PullAppMessagesRequest
from flwr.supercore.inflatable.inflatable_object import iterate_object_tree
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents

if TYPE_CHECKING:
    from flwr.serverapp import Grid

PIECES = 5 << 20  # bytes Flower puts into one object
AROUND = 4  # objects around the pieces of our one array: message, dict, record, array
ROOM = 20_000  # bytes of theirs
MOST = 64  # objects of a message at least that we look at before we judge it


class BadReply(Exception):
    """A reply that is not taken in; the text says why."""


@dataclass(frozen=True)
class Reply:
    """What came to a message: a body, an error of the network's, or why it is refused."""

    to: str
    node: int
    body: bytes | None = None
    error: str = ""
    refused: str = ""


class Replies:
    """Those that have come to the SuperLink for one run. One whose pieces are still on their way waits for them."""

    def __init__(self, grid: "Grid") -> None:
        self._grid: Any = grid
        self._arriving: dict[str, Arriving] = {}  # by the message they reply to

    def pull(self, limits: Mapping[str, int]) -> list[Reply]:
        """Replies to these messages; whatever is wrong with one concerns its sender alone."""
        found = self._grid._runtime_client.PullMessages(PullAppMessagesRequest(message_ids=list(limits)))
        for message, tree in zip(found.messages_list, found.message_object_trees, strict=True):
            about = message.metadata  # the SuperLink's, not what the sender wrote into the message itself
            names = [part.object_id for part in iterate_object_tree(tree)]
            self._arriving[about.reply_to_message_id] = Arriving(about.message_id, about.src_node_id, names)
        self._arriving = {to: arriving for to, arriving in self._arriving.items() if to in limits}
        taken = {to: self._take(to, arriving, limits[to]) for to, arriving in self._arriving.items()}
        replies = [reply for reply in taken.values() if reply is not None]
        for reply in replies:
            self._confirm(self._arriving.pop(reply.to).key)
        return replies

    def _take(self, to: str, arriving: "Arriving", limit: int) -> Reply | None:
        try:
            if not arriving.complete(self._fetch, limit):
                return None
            return Reply(to, arriving.node, **read(arriving.key, arriving.contents, limit))
        except BadReply as error:
            return Reply(to, arriving.node, refused=str(error))

    def _fetch(self, name: str) -> Any:
        run = self._grid.run.run_id
        return self._grid._runtime_client.PullObject(
            PullObjectRequest(node=self._grid.node, run_id=run, object_id=name)
        )

    def _confirm(self, key: str) -> None:
        """The SuperLink may forget it."""
        run = self._grid.run.run_id
        self._grid._runtime_client.ConfirmMessageReceived(
            ConfirmMessageReceivedRequest(node=self._grid.node, run_id=run, message_object_id=key)
        )


@dataclass
class Arriving:
    """A reply of which some objects may still be on their way."""

    key: str
    node: int
    names: list[str]
    contents: dict[str, bytes] = field(default_factory=dict)

    def complete(self, fetch: Callable[[str], Any], limit: int) -> bool:
        """Fetch what is there, one object after the other, as long as they stay within the limit."""
        wanted = dict.fromkeys(self.names)
        if len(wanted) > max(MOST, limit // PIECES + 1 + AROUND):
            raise BadReply(f"a reply of {len(wanted)} objects, {limit:,} bytes expected at most")
        for name in wanted:
            if name not in self.contents:
                answer = fetch(name)
                if not answer.object_found:
                    raise BadReply("a reply of which a part does not exist")
                if not answer.object_available:
                    return False
                self.contents[name] = answer.object_content
            if sum(map(len, self.contents.values())) > limit + ROOM:
                raise BadReply(f"a reply of more than {limit:,} bytes, which is the most that is expected")
        return True


def read(key: str, contents: dict[str, bytes], limit: int) -> dict[str, Any]:
    """The body of a reply, or the error it tells of; what is not of our client app's form is refused."""
    try:
        if sum(rebuilt(content, contents) for content in contents.values()) > limit + ROOM:
            raise BadReply(f"an array that names its pieces again and again, to more than {limit:,} bytes")
        message: Any = inflate_object_from_contents(key, dict(contents))
        if message.has_error():
            return {"error": f"Flower's error {message.error.code}: {str(message.error.reason)[:500]}"}
        body = message.content.array_records["reply"]["body"].data
    except BadReply:
        raise
    except Exception as error:  # whatever it is, the sender caused it
        raise BadReply(f"not a reply of our client app ({type(error).__name__})") from error
    if not isinstance(body, bytes):
        raise BadReply("not a reply of our client app (its body is no bytes)")
    return {"body": body}


def rebuilt(content: bytes, contents: Mapping[str, bytes]) -> int:
    """How many bytes an array will have: it may name a piece more than once, and so be small on the wire alone."""
    head, _, body = content.partition(b"\0")
    if not head.startswith(b"Array "):
        return 0
    pieces = head.decode().split(" ")[1].split(",")
    return sum(len(contents[pieces[i]]) for i in json.loads(body)["arraychunk_ids"])
