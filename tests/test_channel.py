"""What goes in at one end of a channel comes out at the other, to the bit and of whatever type."""

import socket
import threading

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pfeddsh.federation.channel import Channel
from pfeddsh.messages import Record

TYPES = [torch.float32, torch.float64, torch.int64, torch.uint8, torch.bool, torch.bfloat16]


@pytest.fixture
def ends():
    one, two = map(Channel, socket.socketpair())
    yield one, two
    one.close()
    two.close()


def carried(header, *records):
    one, two = map(Channel, socket.socketpair())
    sender = threading.Thread(target=one.send, args=(header, *records))
    sender.start()
    try:
        return two.receive()
    finally:
        sender.join()
        one.close()
        two.close()


@settings(deadline=None)  # a busy machine may take longer over one
@given(st.lists(st.tuples(st.sampled_from(TYPES), st.lists(st.integers(0, 4), max_size=3)), max_size=4))
def test_records_arrive_as_they_were(parts):
    stream = torch.Generator().manual_seed(len(parts))
    tensors = {
        f"t/{i}": torch.randn(shape, generator=stream).mul(9).to(dtype) for i, (dtype, shape) in enumerate(parts)
    }
    first, second = Record(tensors, {"samples": 3, "why": "naïve"}), Record()
    header, (one, two) = carried({"job": "local"}, first, second)
    assert header == {"job": "local"}
    assert one.same(first) and two.same(second)
    assert list(one.tensors) == list(tensors)


def test_views_and_more_than_the_socket_holds():
    wide = torch.arange(2_000_000, dtype=torch.float32).view(1000, 2000)
    record = Record({"turned": wide.T, "part": wide[10:20, 3:7], "whole": wide})
    _, (found,) = carried("", record)
    assert found.same(record)
    assert len({tensor.data_ptr() for tensor in found.tensors.values()}) == 3
    assert all(tensor.data_ptr() % 64 == 0 for tensor in found.tensors.values())


@pytest.mark.parametrize("part", [torch.eye(3).to_sparse(), [1.0]], ids=["sparse", "no tensor"])
def test_what_cannot_be_sent_raises_before_anything_is(ends, part):
    one, two = ends
    with pytest.raises((RuntimeError, AttributeError)):
        one.send("first", Record({"w": torch.ones(3)}), Record({"x": part}))
    with pytest.raises(TypeError):
        one.send("second", Record(facts={"loss": torch.ones(1)}))
    one.send("third", Record({"w": torch.ones(3)}))
    header, (found,) = two.receive()
    assert header == "third" and found["w"].sum() == 3


def test_an_end_that_is_gone_is_noticed(ends):
    one, two = ends
    one.send("", Record({"w": torch.ones(3)}))
    one.close()
    assert two.receive()[1][0]["w"].sum() == 3
    with pytest.raises(EOFError):
        two.receive()
    with pytest.raises(OSError):
        two.send("anyone there?")


def test_a_message_cut_short_is_no_message(ends):
    one, two = ends
    one._socket.sendall((100).to_bytes(8, "little") + b'["", [[{}, ')
    one.close()
    with pytest.raises(EOFError):
        two.receive()
