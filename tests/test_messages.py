"""Messages: what is sent arrives, and what is wrong is refused before it touches any state."""

import math

import pytest
import torch

from pfeddsh.messages import BadMessage, Message, Record, bundle, check, unbundle
from pfeddsh.methods.fedavg import FedAvg
from pfeddsh.methods.options import Options
from pfeddsh.methods.task import Task

TEMPLATE = Message({"body": torch.zeros(2, 3), "count": torch.zeros(2, dtype=torch.int64)}, {"samples": 1})


def upload(**changes):
    """A good upload, or one with some tensors replaced."""
    good = {"body": torch.ones(2, 3), "count": torch.tensor([4, 5])}
    return Message({**good, **changes}, {"samples": 7, "loss": 0.5})


def test_a_record_survives_encoding_to_the_bit():
    tensors = {
        "weights": torch.tensor([[1.5, -0.0, math.inf, 1e-45]]),
        "labels": torch.tensor([1, -2]),
        "mask": torch.tensor([True, False]),
        "half": torch.tensor(0.1, dtype=torch.float16),
        "none": torch.zeros(0, 3),
    }
    facts = {"samples": 3, "nested": {"list": [1, None, "ü"]}}
    copy = Record.decode(Record(tensors, facts).encode())
    assert copy.facts == facts
    assert copy.tensors.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert copy[name].dtype == tensor.dtype
        assert copy[name].shape == tensor.shape
        assert copy[name].numpy().tobytes() == tensor.numpy().tobytes()


def test_slices_and_transposes_can_be_sent():
    table = torch.arange(12.0).reshape(3, 4)
    copy = Record.decode(Record({"column": table[:, 1], "turned": table.t()}).encode())
    assert copy["column"].tolist() == [1, 5, 9]
    assert torch.equal(copy["turned"], table.t())


def test_one_tensor_under_two_names_arrives_as_two():
    shared = torch.arange(3.0)
    copy = Record.decode(Record({"a": shared, "b": shared}).encode())
    copy["a"] += 1
    assert copy["b"].tolist() == [0, 1, 2]


def test_payload_counts_the_bytes_of_the_tensors():
    assert Message({"a": torch.zeros(10), "b": torch.zeros(3, dtype=torch.int64)}, {"samples": 5}).nbytes == 64
    assert Message(facts={"samples": 5}).nbytes == 0


@pytest.mark.parametrize("cut", [0, 4, 20, -1])
def test_a_truncated_record_is_refused(cut):
    with pytest.raises(BadMessage, match="not a readable record"):
        Record.decode(upload().encode()[:cut])


def test_bytes_that_are_no_record_are_refused():
    with pytest.raises(BadMessage, match="not a readable record"):
        Record.decode(b"\x02" + bytes(7) + b"[]")


def test_a_good_message_passes():
    check(upload(), TEMPLATE)


BAD_TENSORS = {
    "surplus": ({"extra": torch.ones(1)}, "unexpected tensor extra"),
    "wrong shape": ({"body": torch.ones(3, 2)}, r"body has shape \[3, 2\], expected \[2, 3\]"),
    "flattened": ({"body": torch.ones(6)}, "body has shape"),
    "double": ({"body": torch.ones(2, 3, dtype=torch.float64)}, "body has type torch.float64"),
    "float for int": ({"count": torch.ones(2)}, "count has type torch.float32"),
    "nan": ({"body": torch.tensor([[1, 2, 3], [4, math.nan, 6]])}, "body has values that are not finite"),
    "inf": ({"body": torch.full((2, 3), math.inf)}, "body has values that are not finite"),
    "-inf": ({"body": torch.full((2, 3), -math.inf)}, "body has values that are not finite"),
}


@pytest.mark.parametrize(("changes", "reason"), BAD_TENSORS.values(), ids=BAD_TENSORS)
def test_a_bad_tensor_is_refused_by_name(changes, reason):
    with pytest.raises(BadMessage, match=reason):
        check(upload(**changes), TEMPLATE)


def test_a_missing_tensor_is_refused_by_name():
    message = upload()
    del message.tensors["body"]
    with pytest.raises(BadMessage, match="missing tensor body"):
        check(message, TEMPLATE)


def test_a_renamed_tensor_is_refused():
    message = upload()
    message["bodi"] = message.tensors.pop("body")
    with pytest.raises(BadMessage, match="missing tensor body"):
        check(message, TEMPLATE)


@pytest.mark.parametrize("count", [-1, math.nan, math.inf, 1e30, True, "7", None, [7]])
def test_an_absurd_sample_count_is_refused(count):
    message = upload()
    message.facts["samples"] = count
    with pytest.raises(BadMessage, match="fact samples"):
        check(message, TEMPLATE)


def test_a_missing_sample_count_is_refused():
    with pytest.raises(BadMessage, match="missing fact samples"):
        check(Message(upload().tensors), TEMPLATE)


def test_an_upload_without_samples_is_refused():
    """A mean over no samples at all would turn the state into NaN."""
    method = FedAvg(Task.create(10, 0), Options())
    download = method.download(method.init(), [3])[3]
    with pytest.raises(BadMessage, match="samples"):
        check(Message(download.tensors, {"samples": 0}), method.expected(download))


def test_several_records_in_one_come_apart_again():
    parts = {
        "state": Record({"theta": torch.ones(2)}, {"step": 3}),
        "memory/12": Record({"a:b": torch.zeros(1)}),
        "empty": Record(),
    }
    again = unbundle(Record.decode(bundle(parts).encode()))
    assert list(again) == list(parts)
    assert again["state"].facts == {"step": 3}
    assert again["state"]["theta"].tolist() == [1, 1]
    assert list(again["memory/12"].tensors) == ["a:b"]


def test_a_description_names_tensors_shapes_and_facts():
    text = upload().describe()
    assert "body[2, 3] |2.45|" in text
    assert "samples=7" in text
    assert Record().describe() == "nothing"
