"""Mutated messages at every door of a coordinator: card, upload, report, answer, hello, object, checkpoint, key, log.

Each door may refuse or accept. Anything else is a fault: another exception, something accepted that means nothing or
spoils a state, more than a few seconds for one message. The same seed gives the same messages.

    python tests/fuzz.py --messages 1000000 --seed 0
"""

import argparse
import base64
import json
import random
import tempfile
import time
from collections import Counter
from concurrent.futures import Future
from pathlib import Path

import torch
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from fuzz_bytes import NUMBERS, spoilt
from fuzz_replies import TEST, TRAIN, Replies, hold

from pfeddsh.errors import UserError
from pfeddsh.live.coordinator.admission import Admission
from pfeddsh.live.coordinator.roster import Roster
from pfeddsh.live.coordinator.status import Refused
from pfeddsh.live.security.certs import fingerprint
from pfeddsh.live.security.proxy import ERRORS, LOG
from pfeddsh.live.security.refusals import Watcher
from pfeddsh.live.transport import Node
from pfeddsh.messages import Message, Record
from pfeddsh.storage.records import Damaged, digest, read_record, write_record

SLOW = 5.0  # CPU-seconds for one message: a hang
DOORS = {  # and how often each is tried
    "card": 1, "upload": 3, "report": 2, "answer": 1, "hello": 2, "object": 2, "checkpoint": 1, "key": 3, "log_line": 1,
}  # fmt: skip


class Fuzzer:
    """Good messages, and doors that see them spoilt."""

    def __init__(self, seed, folder):
        self.draw, self.folder = random.Random(seed), folder
        self.replies = Replies(self.draw)
        self.roster = Roster(folder / "clients.json")
        self.roster.save = lambda: None  # nothing is written for a message
        self.refused = []
        self.admission = Admission(None, self.roster, b"", 1.0, False, lambda name, why: self.refused.append(why))
        self.record = Record({"a": torch.arange(9.0)}, {"facts": {"n": [1, 2]}})
        self.path = folder / "record.safetensors"
        write_record(self.path, self.record, durable=False)
        self.saved = self.path.read_bytes()
        key = ec.derive_private_key(2**300 + seed, ec.SECP384R1()).public_key()
        self.keys = [
            key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH) + b" site",
            key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo),
            _compressed(key),
        ]
        (folder / LOG).touch(), (folder / ERRORS).touch()
        self.watcher = Watcher(folder)
        self.objects = _flower_objects()

    def bytes(self, data):
        return spoilt(self.draw, data)

    # Doors: True if the message was accepted

    def card(self):
        return self.replies.reply("card", self.bytes)

    def upload(self):
        return self.replies.reply("local", self.bytes)

    def report(self):
        return self.replies.reply("settle", self.bytes)

    def answer(self):
        return self.replies.reply(self.draw.choice(("receive", "score", "keep", "judge")), self.bytes)

    def hello(self):
        good = Message(facts={"name": "north", "key": "SHA256:abc", "train": TRAIN, "test": TEST, "leaving": False})
        future = Future()
        future.set_result(self.replies.body(good, self.bytes))
        before = len(self.refused)
        self.admission._introduced(Node(7, "key", ""), future)
        if len(self.refused) > before:
            return False
        gone, waiting = self.admission.leaving(), list(self.roster.queue.values())
        hold(len(gone) + len(waiting) == 1, "neither here nor gone")
        hold(all(0 < len(key) <= 200 for key in [*gone, *self.roster.queue]), "a false key")
        for newcomer in waiting:
            hold(newcomer.name.isprintable() and len(newcomer.name) <= 64, "a false name")
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

    def checkpoint(self):
        self.path.write_bytes(self.bytes(self.saved))
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


def run(messages, seed, folder, tell=lambda done, faults: None):
    """Counts of each outcome at each door, and the faults: door, number of the message, what was wrong."""
    fuzzer, outcomes, faults = Fuzzer(seed, Path(folder)), Counter(), []
    doors = [door for door, times in DOORS.items() for _ in range(times) if door != "object" or fuzzer.objects]
    for number in range(messages):
        door, began = doors[number % len(doors)], time.process_time()
        try:
            outcomes[door, "accepted" if getattr(fuzzer, door)() else "refused"] += 1
        except Exception as error:
            faults.append((door, number, f"{type(error).__name__}: {str(error)[:200]}"))
        if time.process_time() - began > SLOW:
            faults.append((door, number, "a hang"))
        if number % 10_000 == 0:
            tell(number, faults)
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

    told = [0]  # faults

    def tell(done, faults):
        if done % 100_000 == 0 or len(faults) > told[0]:
            print(f"{done:>9,} messages, {time.monotonic() - began:.0f} s, {len(faults)} faults", flush=True)
            told[0] = len(faults)

    memory = Path("/dev/shm")  # it is no disk that is tested
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        outcomes, faults = run(arguments.messages, arguments.seed, folder, tell)
    for door in DOORS:
        print(f"{door:<10} {outcomes[door, 'refused']:>9,} refused {outcomes[door, 'accepted']:>9,} accepted")
    for fault in faults[:20]:
        print("FAULT", *fault)
    print(f"{sum(outcomes.values()) + len(faults):,} messages, {len(faults)} faults, seed {arguments.seed}")
    raise SystemExit(bool(faults))


if __name__ == "__main__":
    main()
