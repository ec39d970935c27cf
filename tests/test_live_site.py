"""A site by itself: its data, its files, its answers; and mistakes at the command line."""

import sys
import warnings
from concurrent.futures import Future
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest
import torch
from conftest import assert_same_bits
from live_sites import CLASSES, encode_call, federation, shards

from pfeddsh import cli
from pfeddsh.data.datasets import load
from pfeddsh.errors import UserError
from pfeddsh.federation.workbench import Call
from pfeddsh.live.coordinator.engine import LiveBench, LiveEngine
from pfeddsh.live.exchange import Exchange, Parcel
from pfeddsh.live.site.calls import Site
from pfeddsh.live.site.join import SiteConfig, alone
from pfeddsh.live.site.worker import reply
from pfeddsh.live.transport import Answer
from pfeddsh.live.wire import decode, encode
from pfeddsh.mechanisms.prior import own_prior
from pfeddsh.messages import BadMessage, Message
from pfeddsh.storage.records import read_record


@pytest.fixture(scope="module")
def shard(tmp_path_factory):
    return shards(tmp_path_factory.mktemp("data"), 2)[0]


def _home(path):
    path.mkdir(exist_ok=True)
    return path


def test_a_call_that_was_done_is_answered_from_disk(tmp_path, shard, monkeypatch):
    config = federation(tmp_path / "server", method="fedper", options={})
    bench = LiveBench(config, [(0,)])
    site = Site(_home(tmp_path / "site"), "site", "key", str(shard))
    download = bench.method.download(bench.method.init(), [0])[0]
    body = encode_call(Call("local", bench.visit(1, 0, 0), download), config.for_sites())
    first = site.answer(body)
    kept = read_record(tmp_path / "site" / "memory.safetensors").tensors
    monkeypatch.setattr(type(bench.method), "local", None)  # it must not be needed any more
    again = Site(tmp_path / "site", "site", "key", str(shard))
    assert again.answer(body) == site.answer(body) == first
    assert_same_bits(read_record(tmp_path / "site" / "memory.safetensors").tensors, kept)


def test_the_model_before_the_last_one_stays(tmp_path, shard):
    config = federation(tmp_path / "server", method="fedavg", options={})
    bench = LiveBench(config, [(0,)])
    site = Site(_home(tmp_path / "site"), "site", "key", str(shard))
    served = bench.method.download(bench.method.init(), [0])[0]
    models = [served, Message({name: tensor * 2 for name, tensor in served.tensors.items()})]
    for round, model in enumerate(models):
        body = encode_call(Call("settle", bench.visit(1, round, 0), model), config.for_sites())
        assert decode(site.answer(body))[0]["status"] == "ok"
    current, before = (read_record(tmp_path / "site" / f"model{part}.safetensors") for part in ("", ".previous"))
    assert current.facts["classes"] == CLASSES
    assert_same_bits({"theta": before["theta"] * 2}, {"theta": current["theta"]})


def test_a_site_exports_the_model_it_has_kept_with_its_prior_in_the_bias(tmp_path, shard):
    config = federation(tmp_path / "server", method="fedavg-prior", options={})
    bench = LiveBench(config, [(0,)])
    site = Site(_home(tmp_path / "site"), "site", "key", str(shard))
    served = bench.method.download(bench.method.init(), [0])[0]
    for job in ("settle", "keep"):
        body = encode_call(Call(job, bench.visit(1, 0, 0), served), config.for_sites())
        assert decode(site.answer(body))[0]["status"] == "ok"
    model = read_record(tmp_path / "site" / "model.safetensors")
    bias = bench.task.model.slices["fc3.bias"]
    wanted = served["theta"].clone()
    wanted[bias] += own_prior(site.data.train[1], 10)
    assert_same_bits({"theta": model["theta"]}, {"theta": wanted})
    assert not torch.equal(model["theta"][bias], served["theta"][bias])
    worse = Message({"theta": served["theta"] * 100})
    body = encode_call(Call("receive", bench.visit(2, 0, 0), worse), config.for_sites())
    assert decode(site.answer(body))[1].facts["accepted"] is False
    assert_same_bits(read_record(tmp_path / "site" / "model.safetensors").tensors, model.tensors)


def test_whatever_goes_wrong_at_a_site_is_told(tmp_path, shard, caplog):
    site = Site(_home(tmp_path / "site"), "site", "key", str(tmp_path / "missing.npz"))
    config = federation(tmp_path / "server")
    body = encode_call(Call("card", LiveBench(config, [(0,)]).visit(1, 0, 0)), config.for_sites())
    header, _ = decode(reply(site, body))
    assert header["status"] == "error" and "worker.log" in header["reason"]
    assert "missing" not in header["reason"] and "missing.npz" in caplog.text  # names of files stay at the site
    header, _ = decode(reply(site, b"nonsense"))
    assert header["status"] == "error"


def test_bytes_that_are_no_reply_are_a_bad_message():
    for body in (b"", b"\0\0\0\2[]", b"\0\0\0\2{}", b"\xff" * 100):
        with pytest.raises(BadMessage):
            decode(body)


def test_a_site_may_lack_classes_but_not_invent_them(tmp_path):
    images = np.zeros((4, 8, 8), dtype=np.uint8)
    labels = np.array([0, 7, 7, 7])
    np.savez(tmp_path / "mine.npz", x_train=images, y_train=labels, x_test=images, y_test=labels)
    assert load(str(tmp_path / "mine.npz"), class_names=tuple(CLASSES)).classes == 10
    with pytest.raises(UserError, match="label 7"):
        load(str(tmp_path / "mine.npz"), class_names=("a", "b", "c"))


def test_a_message_is_sent_again_to_a_node_that_moved_or_came_back():
    class Network:
        def __init__(self):
            self.sent = []

        def nodes(self):
            return []

        def push(self, bodies, ttl):
            self.sent += [node for node, _ in bodies]
            return [f"message {len(self.sent)}"]

        def pull(self, messages):
            return []

    network, where = Network(), iter([None, 1, 1, 2, None, 2])
    exchange = Exchange(network)
    exchange.online = dict.fromkeys([1, 2])
    exchange._parcels.append(Parcel(lambda: next(where), (b"",), 60, 60))
    for _ in range(6):
        exchange._send()
    assert network.sent == [1, 2, 2]


def test_what_many_sites_are_sent_is_encoded_once_and_lies_in_memory_once(tmp_path):
    class Kept:
        def __init__(self):
            self.parts = []

        def ask(self, address, parts, timeout, grace, limit):
            self.parts.append(parts)
            return Future()

    config, exchange = federation(tmp_path / "server"), Kept()
    bench = LiveBench(config, [(0, 1, 2)])
    admission = SimpleNamespace(roster=SimpleNamespace(clients=[SimpleNamespace(key=str(k)) for k in range(3)]))
    engine = LiveEngine(bench, config, exchange, admission)
    one, other = (Message({"theta": bench.task.theta0 * factor}) for factor in (1, 2))
    for client, message in ((0, one), (1, one), (2, other), (0, one)):
        engine.submit(Call("score", bench.visit(1, 0, client), message))
    bodies = [parts[-1] for parts in exchange.parts]
    assert bodies[0] is bodies[1] and bodies[0] == bodies[3] != bodies[2]
    for parts, (client, message) in zip(exchange.parts, ((0, one), (1, one), (2, other)), strict=False):
        header, sent = decode(b"".join(parts))
        assert header["visit"]["client"] == client and torch.equal(sent["theta"], message["theta"])


def test_nobody_answers_for_another_and_no_answer_is_longer_than_was_asked_for():
    class Network:
        answers: ClassVar = []

        def nodes(self):
            return []

        def push(self, bodies, ttl):
            return ["message"]

        def pull(self, limits):
            assert limits == {"message": 10}
            return self.answers

    exchange = Exchange(Network())
    exchange.online = {1: None}
    for answers, outcome in (
        ([Answer("message", b"from another", node=2)], None),
        ([Answer("message", b"short", node=1)], b"short"),
        ([Answer("message", b"much too long", node=1)], BadMessage),
        ([Answer("message", None, refused="a reply of 80 objects")], BadMessage),
    ):
        parcel = Parcel(lambda: 1, (b"",), 60, 60, limit=10)
        exchange._parcels.append(parcel)
        exchange._send()
        Network.answers = answers
        exchange._receive()
        if outcome is None:
            assert not parcel.future.done()
        elif outcome is BadMessage:
            assert isinstance(parcel.future.exception(), BadMessage)
        else:
            assert parcel.future.result() == outcome


ASKED = {
    "settings.shape": lambda header: header["settings"].update(shape=[3, 100_000, 100_000]),
    "more than this site makes": lambda header: header["settings"].update(shape=[16, 1024, 1024]),
    "settings.classes": lambda header: header["settings"].update(classes=["a"] * 20_000),
    "settings.mean": lambda header: header["settings"].update(mean=[1e400, 0.0, 0.0]),
    "visit.epochs": lambda header: header["visit"].update(epochs=10**9),
    "visit.batch_size": lambda header: header["visit"].update(batch_size=0),
    "visit.lr": lambda header: header["visit"].update(lr=float("nan")),
}


@pytest.mark.parametrize("reason", [*ASKED, "not finite"])
def test_a_site_does_not_do_whatever_it_is_asked(tmp_path, shard, reason):
    config = federation(tmp_path / "server")
    bench = LiveBench(config, [(0,)])
    site = Site(_home(tmp_path / "site"), "site", "key", str(shard))
    served = bench.method.download(bench.method.init(), [0])[0]
    if reason == "not finite":
        served = Message({"theta": served["theta"] * float("nan")})
    header, message = decode(encode_call(Call("settle", bench.visit(1, 0, 0), served), config.for_sites()))
    ASKED.get(reason, lambda header: None)(header)
    answer, _ = decode(reply(site, encode(header, message)))
    assert answer["status"] == "error" and reason in answer["reason"]
    assert not (tmp_path / "site" / "model.safetensors").exists()


@pytest.fixture
def refused(monkeypatch, capsys):
    """The explanation with which a command ends."""
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)

    def command(*arguments):
        monkeypatch.setattr(sys, "argv", ["pfeddsh", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            cli.main()
        errors = capsys.readouterr().err
        assert end.value.code == 2 and "Traceback" not in errors
        return errors

    return command


def test_mistakes_are_explained(tmp_path, refused):
    fed = tmp_path / "fed"
    assert "--classes" in refused("serve", fed)
    assert "batch_min" in refused("serve", fed, "--classes", "a,b", "--set", "batch_mim=3")
    assert "never does" in refused("serve", fed, "--classes", "a,b", "--method", "joint")
    network = ("model=convnet", "shape=[1,8,8]", "mean=[0.5]", "std=[0.5]")
    unfit = [word for value in network for word in ("--set", value)]
    assert "use lenet" in refused("serve", fed, "--classes", "a,b", "--method", "fedweit", *unfit)
    assert "pfeddsh certs" in refused("serve", fed, "--classes", "a,b")
    assert "--data" in refused("join", tmp_path / "site")
    assert "no such" in refused("join", tmp_path / "site", "--data", tmp_path / "nothing")
    (tmp_path / "data").mkdir()
    insecure = ("--server", "example.org:9092", "--insecure")
    assert "on this machine" in refused("join", tmp_path / "site", "--data", tmp_path / "data", *insecure)
    assert "ca.crt" in refused("join", tmp_path / "site", "--data", tmp_path / "data", "--server", "example.org:9443")
    assert not (tmp_path / "site").exists(), "nothing is written before all is checked"


def test_a_second_join_in_the_same_folder_touches_nothing(tmp_path, refused):
    home = tmp_path / "site"
    home.mkdir()
    SiteConfig(name="site", data=str(tmp_path), insecure=True).save(home)
    with alone(home):
        before = {path.name: path.read_bytes() for path in home.iterdir() if path.is_file()}
        said = refused("join", home, "--name", "other", "--data", tmp_path)
        assert "another `pfeddsh join` or `leave` runs" in said
        assert "another `pfeddsh join` or `leave` runs" in refused("leave", home)
        assert {path.name: path.read_bytes() for path in home.iterdir() if path.is_file()} == before
