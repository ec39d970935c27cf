"""Mutated messages at every door of the coordinator: reply, hello, Flower object, checkpoint, key, log line.

Each door may refuse or accept. Anything else is a fault: another exception, something accepted that means nothing, more
than a few seconds for one message. The same seed gives the same messages.

    python tests/fuzz.py --messages 1000000 --seed 0
"""

import argparse
import base64
import json
import math
import random
import tempfile
import time
from collections import Counter
from concurrent.futures import Future
from pathlib import Path

import torch
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from pfeddsh.errors import UserError
from pfeddsh.live.coordinator.admission import Admission
from pfeddsh.live.coordinator.config import build
from pfeddsh.live.coordinator.door import Door, change, extent
from pfeddsh.live.coordinator.engine import LiveBench, read_reply
from pfeddsh.live.coordinator.roster import Member, Roster
from pfeddsh.live.coordinator.status import Refused
from pfeddsh.live.exchange import Absent
from pfeddsh.live.security.certs import fingerprint
from pfeddsh.live.security.proxy import ERRORS, LOG
from pfeddsh.live.security.refusals import Watcher
from pfeddsh.live.transport import Node
from pfeddsh.live.wire import encode
from pfeddsh.messages import BadMessage, Message, Record
from pfeddsh.models.base import split_statistics, statistics_size
from pfeddsh.storage.files import Damaged, digest, read_record, write_record

SLOW = 5.0  # seconds for one message: a hang
TRAIN, TEST = 40, 10  # images the site has told of
TOKENS = [
    b"[" * 3000, b"{" * 3000, b'{"a":' * 2000, b"NaN", b"-Infinity", b"1e400", b"9" * 5000, b"null", b"true",
    b"\xff\xfe", b"\0", b'"', b"\\ud800", b"-1", b"0.5", b"[]", b"{}", b"\xf0\x9f\x92\xa9", b"__metadata__",
    b"data_offsets", b",",
]  # fmt: skip
NUMBERS = [
    0, -1, 1, TRAIN, TRAIN + 1, 10**9, 10**400, -(10**400), True, None, "7", [1], {}, 0.5, math.nan, math.inf, 1e308,
]  # fmt: skip


class Fault(Exception):
    """Something a door must not let through."""


def hold(holds, what):
    if not holds:
        raise Fault(what)


class Fuzzer:
    """Good messages of a small federation, and ways to spoil them."""

    def __init__(self, seed, folder):
        self.draw, self.folder = random.Random(seed), folder
        values = {"classes": list("abc"), "model": "convnet", "shape": [1, 4, 4], "mean": [0.5], "std": [0.5]}
        config = build(values, "fuzz")
        self.method = LiveBench(config, [(0,)]).method
        self.door, self.member = (
            Door(self.method, config.norm_limit),
            Member(0, "key", "site", 1, train=TRAIN, test=TEST),
        )
        self.state = self.method.init()
        self.method.open_step(self.state, 1, 3, {0: Message({"histogram": torch.full((3,), 1 / 3)})})
        self.sent = self.method.download(self.state, [0])[0]
        statistics = torch.ones(statistics_size(self.method.model))
        theta = self.sent["theta"]
        self.good = {
            "card": Message({"histogram": torch.tensor([0.25, 0.25, 0.5])}),
            "local": Message({"delta": 0.01 * theta}, {"samples": TRAIN, "loss": 0.5}),
            "settle": Message({"statistics": statistics}),
            "receive": Message(facts={"accepted": True}),
            "score": Message(facts={"correct": {"acc": 5, "acc_unguarded": 6}, "count": TEST, "control": 4}),
            "keep": Message(),
        }
        self.roster = Roster(folder / "clients.json")
        self.roster.save = lambda: None  # nothing is written for a message
        self.refused = []
        self.admission = Admission(None, self.roster, b"", 1.0, False, lambda name, why: self.refused.append(why))
        self.record, self.path = (
            Record({"a": torch.arange(9.0)}, {"facts": {"n": [1, 2]}}),
            folder / "record.safetensors",
        )
        write_record(self.path, self.record, durable=False)
        self.checkpoint = self.path.read_bytes()
        key = ec.generate_private_key(ec.SECP384R1()).public_key()
        self.keys = [
            key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH) + b" site",
            key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo),
            _compressed(key),
        ]
        (folder / LOG).touch(), (folder / ERRORS).touch()
        self.watcher = Watcher(folder)
        self.objects = _flower_objects()

    # Ways to spoil

    def bytes(self, data):
        """A few cuts, copies, flips and insertions."""
        data = bytearray(data)
        for _ in range(self.draw.choice((1, 1, 1, 2, 4))):
            at, kind = self.draw.randrange(len(data) + 1), self.draw.randrange(6)
            end = min(len(data), at + self.draw.choice((1, 2, 8, 64, 1000)))
            if kind == 0 and data:
                data[at % len(data)] ^= 1 << self.draw.randrange(8)
            elif kind == 1:
                del data[at:end]
            elif kind == 2:
                data[at:at] = data[at:end]
            elif kind == 3:
                data[at:at] = self.draw.choice(TOKENS)
            elif kind == 4:
                data[at:end] = self.draw.choice(TOKENS)
            else:
                data[at:end] = self.draw.randbytes(end - at)
        return bytes(data)

    def facts(self, facts):
        facts = json.loads(json.dumps(facts))
        place = facts["correct"] if isinstance(facts.get("correct"), dict) and self.draw.random() < 0.5 else facts
        name = self.draw.choice([*place, "method", "samples", "loss", "accepted", "count", "name", "x" * 99])
        place[name] = self.draw.choice(NUMBERS)
        if self.draw.random() < 0.2 and facts:
            del facts[self.draw.choice(list(facts))]
        return facts

    def tensor(self, tensor):
        draw, flat = self.draw, tensor.clone()
        kind = draw.randrange(9)
        if kind == 0 and flat.numel():
            flat.view(-1)[draw.randrange(flat.numel())] = draw.choice((math.nan, math.inf, -1.0, 1e38, -1e-3, 0.0, 1e7))
        elif kind == 1:
            flat = flat * draw.choice((-1.0, 0.0, 1e3, 1e12, 1e38, -0.5))
        elif kind == 2:
            flat = flat + draw.choice((1.0, -1.0, 1e-6, 1e-2, 1e6))
        elif kind == 3:
            flat = flat[:-1].clone()
        elif kind == 4:
            flat = flat[None]
        elif kind == 5:
            flat = flat.to(draw.choice((torch.float64, torch.float16, torch.int64, torch.bool, torch.uint8)))
        elif kind == 6:
            flat = torch.randn(flat.shape, generator=torch.Generator().manual_seed(draw.randrange(1 << 30)))
        elif kind == 7:
            flat = torch.cat([flat, flat])
        return flat

    def message(self, good):
        """A good message with a lie in it."""
        message = Message(dict(good.tensors), good.facts)
        for _ in range(self.draw.choice((1, 1, 2))):
            if message.tensors and self.draw.random() < 0.7:
                name = self.draw.choice(list(message.tensors))
                spoilt = self.tensor(message[name])
                if self.draw.random() < 0.1:
                    del message.tensors[name]
                message[self.draw.choice((name, name, name, "more"))] = spoilt
            else:
                message.facts = self.facts(message.facts)
        return message

    def body(self, good):
        """A reply, spoilt in meaning, in bytes, or in both."""
        kind, status = self.draw.randrange(4), self.draw.choice(("ok", "ok", "ok", "ok", "error", None, 3))
        message = self.message(good) if kind else good
        body = encode({"status": status, "reason": "\x1b[2J" * 99}, message)
        return self.bytes(body) if kind != 1 else body

    # Doors: True if the message was accepted

    def reply(self):
        job = self.draw.choice(list(self.good))
        try:
            told, _ = read_reply(self.body(self.good[job]))
            told = self.door.admit(job, self.member, self.sent, told)
        except (BadMessage, Absent) as error:
            hold(len(str(error)) < 2000 and str(error).isprintable(), "a reason nobody can read")
            return False
        self.means(job, told)
        return True

    def means(self, job, told):
        """What was accepted is finite, bounded and of the form the method expects; it can be used."""
        for name, tensor in told.tensors.items():
            bounded = bool(torch.isfinite(tensor).all()) and bool((tensor.abs() <= 1e6).all())
            hold(bounded, f"{name} without bounds")
        json.dumps(told.facts, allow_nan=False)
        if job == "card":
            shares = told["histogram"]
            hold(bool((shares >= 0).all()) and abs(float(shares.sum()) - 1) < 0.01, "a histogram of nothing")
        elif job == "settle":
            parts = split_statistics(self.method.model, told["statistics"])
            hold(all(bool((variance >= 0).all()) for _, variance in parts), "a negative variance")
        elif job == "local":
            hold(1 <= told.facts["samples"] <= TRAIN, "more images than were told")
            hold(change(self.sent, told) <= 5 * extent(self.sent), "an absurd norm")
            state = Record(dict(self.state.tensors), dict(self.state.facts))
            self.method.aggregate(state, {0: told})
            hold(bool(torch.isfinite(state["common"]).all()), "a common model that is poisoned")
        elif job == "score":
            count = told.facts["count"]
            hold(1 <= count <= TEST and all(0 <= n <= count for n in told.facts["correct"].values()), "a false score")
            hold(set(told.facts["correct"]) <= {"acc", "acc_unguarded"}, "a rule of its own")
        elif job == "receive":
            hold(isinstance(told.facts["accepted"], bool), "neither yes nor no")

    def hello(self):
        good = Message(facts={"name": "north", "key": "SHA256:abc", "train": TRAIN, "test": TEST})
        future = Future()
        future.set_result(self.body(good))
        before = len(self.refused)
        self.admission._introduced(Node(7, "key", ""), future)
        if len(self.refused) > before:
            return False
        (newcomer,) = self.roster.queue.values()
        hold(newcomer.name.isprintable() and len(newcomer.name) <= 64 and 0 < len(newcomer.key) <= 200, "a false name")
        hold(all(1 <= n <= 10**8 for n in (newcomer.samples, newcomer.test)), "a false number of images")
        self.roster.queue.clear()
        return True

    def object(self):
        from pfeddsh.live import flower_replies

        key, contents = self.objects
        contents = {name: content for name, content in contents.items() if self.draw.random() > 0.02}
        for name in self.draw.sample(list(contents), k=min(len(contents), self.draw.choice((1, 1, 2)))):
            contents[name] = self.bytes(contents[name])
        try:
            told = flower_replies.read(key, contents, limit=10_000)
        except flower_replies.BadReply:
            return False
        hold(len(told.get("body", b"")) <= 31_000, "more than was asked for")
        return True

    def saved(self):
        self.path.write_bytes(self.bytes(self.checkpoint))
        try:
            found = read_record(self.path)
        except Damaged:
            return False
        hold(digest(found) == digest(self.record), "a checkpoint that is not what was written")
        return True

    def key(self):
        text = self.draw.choice(self.keys)
        if self.draw.random() < 0.5 and not text.startswith(b"-"):  # within what is encoded
            kind, blob, *rest = text.split()
            text = b" ".join([kind, base64.b64encode(self.bytes(base64.b64decode(blob))), *rest])
        else:
            text = self.bytes(text)
        try:
            hold(fingerprint(text).startswith("SHA256:"), "no fingerprint")
        except UserError:
            return False
        return True

    def log_line(self):
        """Lines that callers can write into nginx's logs."""
        request = {"time": "2026-01-01T00:00:00+00:00", "address": "192.0.2.1", "method": "POST", "status": 401}
        request |= {"path": "/v1/fleet/pull-messages", "key": base64.b64encode(self.keys[0]).decode()}
        request[self.draw.choice(list(request))] = self.draw.choice([*NUMBERS, "x" * 500, "2026-13-01", "\x1b[2J"])
        handshake = (
            b"2026/01/01 00:00:00 [info] 1#1: *1 SSL_do_handshake() failed (SSL: error:0A000418:SSL routines::tlsv1"
            b" alert unknown ca:SSL alert number 48) while SSL handshaking, client: 192.0.2.1, server: 0.0.0.0:9443"
        )
        name, line = self.draw.choice(((LOG, json.dumps(request).encode()), (ERRORS, handshake)))
        spoilt = self.bytes(line) if self.draw.random() < 0.8 else line
        with open(self.folder / name, "ab") as file:
            file.write(spoilt.replace(b"\n", b" ") + b"\n")
        told = self.watcher.new()
        for entry in told:
            Refused(**entry)
        return bool(told)


def _compressed(key):
    """A key that OpenSSH's form allows and the library does not know: one request from outside used to end us."""
    numbers = key.public_numbers()
    point = bytes([2 + numbers.y % 2]) + numbers.x.to_bytes(48, "big")
    blob = b"".join(len(part).to_bytes(4, "big") + part for part in (b"ecdsa-sha2-nistp384", b"nistp384", point))
    return b"ecdsa-sha2-nistp384 " + base64.b64encode(blob) + b" site"


def _flower_objects():
    """A reply of our client app, as the objects Flower cuts it into."""
    try:
        from flwr.app import Array, ArrayRecord, ConfigRecord, Metadata, RecordDict
        from flwr.app.message import make_message
        from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
    except ModuleNotFoundError:
        return None
    body = bytes(range(256)) * 8
    content = RecordDict({"reply": ArrayRecord({"body": Array("uint8", (len(body),), "bytes", body)})})
    content["more"] = ConfigRecord({"a": 1})
    about = Metadata(
        run_id=1, message_id="", src_node_id=1, dst_node_id=2, reply_to_message_id="m", group_id="", created_at=0.0,
        ttl=9.0, message_type="query",
    )  # fmt: skip
    message = make_message(metadata=about, content=content)
    found = {name: part.deflate() for name, part in get_all_nested_objects(message).items()}
    return message.object_id, found


DOORS = {"reply": 6, "hello": 2, "object": 2, "saved": 1, "key": 1, "log_line": 1}  # and how often each is tried


def run(messages, seed, folder, tell=lambda done: None):
    """Counts of each outcome at each door, and the faults: door, number of the message, what was wrong."""
    fuzzer, outcomes, faults = Fuzzer(seed, Path(folder)), Counter(), []
    doors = [door for door, times in DOORS.items() for _ in range(times) if door != "object" or fuzzer.objects]
    for number in range(messages):
        door, began = doors[number % len(doors)], time.monotonic()
        try:
            outcomes[door, "accepted" if getattr(fuzzer, door)() else "refused"] += 1
        except Exception as error:
            faults.append((door, number, f"{type(error).__name__}: {str(error)[:200]}"))
        if time.monotonic() - began > SLOW:
            faults.append((door, number, "a hang"))
        if number % 10_000 == 0:
            tell(number)
            for name in (LOG, ERRORS):  # as a rotation does
                (fuzzer.folder / name).write_bytes(b"")
            fuzzer.watcher.new()
            fuzzer.refused.clear()
    return outcomes, faults


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    began = time.monotonic()

    def tell(done):
        print(f"{done:>9,} messages, {time.monotonic() - began:.0f} s", flush=True) if done % 100_000 == 0 else None

    with tempfile.TemporaryDirectory() as folder:
        outcomes, faults = run(arguments.messages, arguments.seed, folder, tell)
    for door in DOORS:
        print(f"{door:<9} {outcomes[door, 'refused']:>9,} refused {outcomes[door, 'accepted']:>9,} accepted")
    for fault in faults[:20]:
        print("FAULT", *fault)
    print(f"{sum(outcomes.values()) + len(faults):,} messages, {len(faults)} faults, seed {arguments.seed}")
    raise SystemExit(bool(faults))


if __name__ == "__main__":
    main()
