"""Replies as Flower hands them over: never more than was asked for, and what is wrong with one is its sender's."""

from types import SimpleNamespace

import pytest

pytest.importorskip("flwr", reason="needs pfeddsh[flower]")
from flwr.proto.message_pb2 import Message, ObjectTree
from fuzz import _flower_objects

from pfeddsh.live import flower_replies
from pfeddsh.live.flower_replies import Arriving, BadReply, Replies, read


def found(content, available=True):
    return SimpleNamespace(object_found=content is not None, object_available=available, object_content=content)


class SuperLink:
    """As much of Flower's client as replies need."""

    def __init__(self):
        self.objects, self.waiting, self.confirmed = {}, [], []

    def reply(self, to, key, contents, node=7):
        self.objects |= contents
        message = Message()
        message.metadata.message_id, message.metadata.reply_to_message_id = key, to
        message.metadata.src_node_id = node
        tree = ObjectTree(object_id=key, children=[ObjectTree(object_id=name) for name in contents if name != key])
        self.waiting.append((message, tree))

    def PullMessages(self, request):
        waiting, self.waiting = self.waiting, []
        return SimpleNamespace(messages_list=[m for m, _ in waiting], message_object_trees=[t for _, t in waiting])

    def PullObject(self, request):
        return found(self.objects.get(request.object_id), self.objects.get(request.object_id) != b"on its way")

    def ConfirmMessageReceived(self, request):
        self.confirmed.append(request.message_object_id)


@pytest.fixture
def link():
    return SuperLink()


@pytest.fixture
def replies(link):
    return Replies(SimpleNamespace(_runtime_client=link, node=None, run=SimpleNamespace(run_id=1)))


def test_what_is_wrong_with_one_reply_costs_nobody_else_theirs(link, replies):
    key, good = _flower_objects()
    link.reply("a", "broken", {"broken": b"Message  5\0\xff\xff\xff\xff\xff"})
    link.reply("b", key, good)
    link.reply("c", "stranger", {"stranger": b"no object at all"})
    told = {reply.to: reply for reply in replies.pull({"a": 5000, "b": 5000, "c": 5000})}
    assert told["b"].body == bytes(range(256)) * 8 and told["b"].node == 7
    assert "not a reply" in told["a"].refused and "not a reply" in told["c"].refused
    assert link.confirmed == ["broken", key, "stranger"]


def test_a_reply_whose_pieces_are_on_their_way_keeps_nobody_waiting(link, replies):
    key, good = _flower_objects()
    late = next(iter(good))
    link.reply("a", key, {**good, late: b"on its way"})
    assert replies.pull({"a": 5000}) == []
    link.objects[late] = good[late]
    assert [reply.body is not None for reply in replies.pull({"a": 5000})] == [True]
    link.reply("b", "b", {"b": b"on its way"})
    assert replies.pull({"b": 5000}) == [] and replies.pull({"another": 5000}) == [] and not replies._arriving


def test_of_a_reply_of_400_megabytes_next_to_nothing_is_taken_in():
    taken = 0

    def fetch(name):
        nonlocal taken
        taken += 5 << 20
        return found(bytes(5 << 20))

    with pytest.raises(BadReply, match="more than 1,500,000 bytes"):
        Arriving("key", 1, [str(n) for n in range(64)]).complete(fetch, 1_500_000)
    with pytest.raises(BadReply, match="80 objects"):
        Arriving("key", 1, [str(n) for n in range(80)]).complete(fetch, 1_500_000)
    assert taken <= 5 << 20


def test_an_array_that_names_one_piece_again_and_again_is_refused():
    key, good = _flower_objects()
    name, array = next((name, content) for name, content in good.items() if content.startswith(b"Array "))
    head, _, body = array.partition(b"\0")
    body = body.replace(b"[0]", b"[" + b"0, " * 9_999 + b"0]")
    head = head.rsplit(b" ", 1)[0] + f" {len(body)}".encode()
    with pytest.raises(BadReply, match="again and again"):
        read(key, {**good, name: head + b"\0" + body}, limit=1_000_000)
    assert flower_replies.rebuilt(array, good) < 3_000
