"""Good replies of every kind of method, ways to spoil them, and what must hold of those that are let in."""

import json
import math
from copy import deepcopy

import torch
from fuzz_bytes import NUMBERS

from pfeddsh.live.coordinator.config import build
from pfeddsh.live.coordinator.door import Door, change, extent
from pfeddsh.live.coordinator.engine import LiveBench, read_reply
from pfeddsh.live.coordinator.roster import Member
from pfeddsh.live.exchange import Absent
from pfeddsh.live.wire import encode
from pfeddsh.messages import BadMessage, Memory, Message
from pfeddsh.methods import registry
from pfeddsh.models.base import split_statistics

TRAIN, TEST = 24, 10  # images the site has told of
BOUND = 1e12  # of any number in a state, whatever one site sends
SMALL = {"hidden": 16, "codes": 20, "replay_steps": 1, "iterations": 2}
TINY = {"model": "convnet", "shape": [1, 4, 4], "mean": [0.5], "std": [0.5]}
LENET = {"model": "lenet", "mean": [0.5] * 3, "std": [0.5] * 3}
METHODS = {  # one of each kind of card, upload and report; how often it is tried
    "pfeddsh": (TINY, 8), "fedavg": (TINY, 2), "fedper": (TINY, 1), "fedselect": (TINY, 2), "pfedhn": (TINY, 2),
    "pefll": (TINY, 2), "pfeddsh-hyper": (TINY, 2), "fedweit": (LENET, 1), "hr-local-head": (LENET, 1),
    "pfeddsh-hyper-gate": (LENET, 1),
}  # fmt: skip


class Fault(Exception):
    """Something a door must not let through."""


def hold(holds, what):
    if not holds:
        raise Fault(what)


class Data:
    """A few images of noise."""

    def __init__(self, shape, client):
        stream = torch.Generator().manual_seed(client)
        images = torch.randn(TRAIN + TEST, *shape, generator=stream)
        labels = torch.randint(0, 3, (TRAIN + TEST,), generator=stream)
        self.train, self.test = (images[:TRAIN], labels[:TRAIN]), (images[TRAIN:], labels[TRAIN:])
        self.held_out = self.test


class Federation:
    """One step of two clients is over, a third has joined and trained a round: it is the one that will lie."""

    def __init__(self, name):
        known = registry.find(name).method.Settings.model_fields
        options = {key: value for key, value in SMALL.items() if key in known}
        values = {"classes": list("abc"), "method": name, "options": options, **METHODS[name][0]}
        config = build(values, "fuzz")
        bench = LiveBench(config, [(0, 1), (2,)])
        self.name, self.method = name, bench.method
        self.door = Door(bench.method, config.norm_limit)
        self.member = Member(2, "key", "site", 2, train=TRAIN, test=TEST)
        self.memories, self.state = {}, bench.method.init()
        self.step(bench, 1, [0, 1])
        self.before = deepcopy(self.state)
        self.good, self.sent = self.step(bench, 2, [2])
        score = {"correct": {"acc": 5, "acc_unguarded": 6}, "count": TEST, "control": 4}
        self.good |= {"receive": Message(facts={"accepted": True}), "score": Message(facts=score), "keep": Message()}
        self.good["judge"] = Message(facts={"share": 0.5})

    def step(self, bench, step, clients):
        """What the last of these clients says at each of its jobs, and what it was sent to train."""
        method, state = self.method, self.state
        data = {k: Data(method.model.shape, k) for k in clients}
        visits = {k: bench.visit(step, 0, k) for k in clients}

        def told(job, messages):
            replies = {k: getattr(method, job)(messages[k], data[k], self.memory(k), visits[k]) for k in clients}
            self.memories |= {k: memory for k, (_, memory) in replies.items()}
            return {k: reply for k, (reply, _) in replies.items()}

        cards = told("card", dict.fromkeys(clients, method.greeting(state)))
        method.open_step(state, step, 2, cards)
        self.opened = deepcopy(state)
        sent = method.download(state, clients)
        uploads = told("local", sent)
        method.aggregate(state, uploads)
        reports = told("settle", method.personal(state, clients))
        self.trained = deepcopy(state)
        method.close_step(state, reports)
        last = clients[-1]
        return {"card": cards[last], "local": uploads[last], "settle": reports[last]}, sent[last]

    def memory(self, client):
        return self.memories.get(client, Memory())

    def used(self, job, told):
        """The state after this message has been used; it, and what everyone is served from it, stays within bounds."""
        state = deepcopy({"card": self.before, "local": self.opened}.get(job, self.trained))
        if job == "card":
            self.method.open_step(state, 2, 2, {2: told})
        elif job == "local":
            self.method.aggregate(state, {2: told})
        elif job == "judge":
            self.method.decide(state, {0: told} if told.facts else {})
            self.method.close_step(state, {2: self.good["settle"]})
        elif told.tensors:  # else it is withheld, and counts like one of a client that is away
            self.method.close_step(state, {2: told})
        if "statistics" in state.tensors:
            parts = split_statistics(self.method.model, state["statistics"])
            hold(all(bool((variance >= 0).all()) for _, variance in parts), f"{self.name}: a negative pooled variance")
        for message in (state, *self.method.personal(state, [0, 1, 2]).values()):
            for name, tensor in message.tensors.items():
                if tensor.is_floating_point():
                    hold(bool((tensor.abs() <= BOUND).all()), f"{self.name}: {name} is poisoned")
        json.dumps(state.facts, allow_nan=False)


class Replies:
    """Replies of a hostile client to each job of each method."""

    def __init__(self, draw):
        self.draw = draw
        self.federations = [Federation(name) for name in METHODS]
        self.often = [weight for _, weight in METHODS.values()]

    def reply(self, job, spoil):
        """True if the door let it in."""
        federation = self.draw.choices(self.federations, self.often)[0]
        try:
            told, _ = read_reply(self.body(federation.good[job], spoil))
            told = federation.door.admit(job, federation.member, federation.sent, told)
        except (BadMessage, Absent) as error:
            hold(len(str(error)) < 2000 and str(error).isprintable(), "a reason nobody can read")
            return False
        self.means(federation, job, told)
        return True

    def body(self, good, spoil):
        """A reply, spoilt in meaning, in bytes, or in both."""
        kind, status = self.draw.randrange(4), self.draw.choice(("ok", "ok", "ok", "ok", "error", None, 3))
        message = self.message(good) if kind else good
        body = encode({"status": status, "reason": "\x1b[2J" * 99}, message)
        return spoil(body) if kind in (0, 3) else body

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

    def facts(self, facts):
        facts = json.loads(json.dumps(facts))
        place = facts["correct"] if isinstance(facts.get("correct"), dict) and self.draw.random() < 0.5 else facts
        others = ["method", "samples", "loss", "accepted", "count", "name", "withheld", "leaving", "share", "x" * 99]
        place[self.draw.choice([*place, *others])] = self.draw.choice([*NUMBERS, TRAIN, TRAIN + 1, ["histogram"]])
        if self.draw.random() < 0.2 and facts:
            del facts[self.draw.choice(list(facts))]
        return facts

    def tensor(self, tensor):
        draw, flat = self.draw, tensor.clone()
        kind = draw.randrange(10)
        if kind == 0 and flat.numel():
            odd = (math.nan, math.inf, -1.0, 1e38, -1e-3, 0.0, 1e7, 9e5) if flat.is_floating_point() else (0, 1, 200)
            flat.view(-1)[draw.randrange(flat.numel())] = draw.choice(odd)
        elif kind == 1 and flat.is_floating_point():
            flat = flat * draw.choice((-1.0, 0.0, 1.5, 1e3, 1e12, 1e38, -0.5))
        elif kind == 2 and flat.is_floating_point():
            flat = flat + draw.choice((1.0, -1.0, 1e-6, 1e-2, 1e6, 9e5))
        elif kind == 3:
            flat = flat[:-1].clone()
        elif kind == 4:
            flat = flat[None]
        elif kind == 5:
            flat = flat.to(draw.choice((torch.float64, torch.float16, torch.int64, torch.bool, torch.uint8)))
        elif kind == 6 and flat.is_floating_point():
            flat = torch.randn(flat.shape, generator=torch.Generator().manual_seed(draw.randrange(1 << 30)))
        elif kind == 7:
            flat = torch.cat([flat, flat])
        elif kind == 8 and flat.numel():
            order = torch.randperm(flat.numel(), generator=torch.Generator().manual_seed(7))
            flat = flat.view(-1)[order].view(flat.shape)
        return flat

    def means(self, federation, job, told):
        """What was accepted is finite, bounded and of the form the method expects; and it can be used."""
        for name, tensor in told.tensors.items():
            if tensor.is_floating_point():
                hold(bool((tensor.abs() <= 1e6).all()), f"{name} without bounds")
        json.dumps(told.facts, allow_nan=False)
        if "histogram" in told.tensors:
            shares = told["histogram"]
            hold(bool((shares >= 0).all()) and abs(float(shares.sum()) - 1) < 0.01, "a histogram of nothing")
        if "statistics" in told.tensors:
            parts = split_statistics(federation.method.model, told["statistics"])
            hold(all(bool((variance >= 0).all()) for _, variance in parts), "a negative variance")
            hold(float(told["statistics"].abs().max()) <= 1e4, "statistics of nothing")
        if "counts" in told.tensors:
            hold(float(told["counts"].min()) >= 0 and float(told["counts"].sum()) <= TRAIN, "counts of nothing")
        if job in ("card", "local", "settle"):
            if job == "local":
                hold(1 <= told.facts["samples"] <= TRAIN, "more images than were told")
                hold(change(federation.sent, told) <= 5 * extent(federation.sent), "an absurd norm")
            federation.used(job, told)
        elif job == "score":
            count = told.facts["count"]
            hold(1 <= count <= TEST and all(0 <= n <= count for n in told.facts["correct"].values()), "a false score")
            hold(set(told.facts["correct"]) <= {"acc", "acc_unguarded"}, "a rule of its own")
        elif job == "judge":
            hold(0 <= told.facts.get("share", 0) <= 1, "a share of nothing")
            federation.used(job, told)
        elif job == "receive":
            hold(isinstance(told.facts["accepted"], bool), "neither yes nor no")
