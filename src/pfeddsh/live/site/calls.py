"""What a site does with a call: its data, its memory, its model, all of which stay in its folder.

Every call that changes the memory is stored together with its reply before it is answered. The same call again, because
a message was lost or the coordinator was restarted, is answered from disk.
"""

import hashlib
import os
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from pfeddsh.data.datasets import Dataset, load
from pfeddsh.errors import UserError
from pfeddsh.federation.workbench import CONTROL, Call, Shard
from pfeddsh.live.site import departure, trust
from pfeddsh.live.site.audit import Audit
from pfeddsh.live.site.budget import Budget
from pfeddsh.live.site.policy import OPEN, UNFIT, Policy, Unfit
from pfeddsh.live.site.release import release
from pfeddsh.live.wire import FAREWELL, HELLO, decode, decode_call, encode
from pfeddsh.messages import BadMessage, Memory, Message, Record, bundle, unbundle, withheld
from pfeddsh.methods import registry
from pfeddsh.methods.base import Method
from pfeddsh.methods.local import Local
from pfeddsh.methods.options import Options
from pfeddsh.methods.task import Task, Visit
from pfeddsh.models import registry as networks
from pfeddsh.plugins import is_reference
from pfeddsh.storage.files import write_text
from pfeddsh.storage.records import Damaged, digest, read_record, write_record

JOBS = ("card", "local", "settle", "judge", "keep", "receive", "score")
ERROR = "error"  # in place of a job: what went wrong


class SiteData(Shard):
    """A site's own images: it trains on one part, judges offers and measures itself by the other."""

    def __init__(self, dataset: Dataset) -> None:
        super().__init__(dataset, np.arange(len(dataset.y_train)), np.arange(len(dataset.y_test)))

    @property
    def held_out(self) -> tuple[Tensor, Tensor]:
        return self.test


class Site:
    """A site's side of the federation, without the network."""

    def __init__(
        self, home: Path, name: str, key: str, data: str, allowed: Sequence[str] = (), policy: Policy = OPEN
    ) -> None:
        self.home, self.name, self.key, self.data_path, self.allowed = home, name, key, data, allowed
        self.policy, self.budget, self._audit = policy, Budget(home, policy), Audit(home)
        self._about: dict[str, Any] = {}  # the call that is being answered
        self._settings: dict[str, Any] = {}
        self._memory, self._reply, self._facts = self._load()
        self._control = self._load_control()
        self.method: Method
        self._alone: Local
        self.data: SiteData

    # Calls

    def answer(self, body: bytes) -> bytes:
        """The reply to one message; whatever goes wrong here is told, and harms nobody else."""
        self._about = {"job": ERROR}
        header, message = decode(body)
        visit = header.get("visit") or {}
        self._about = {"job": header["job"], "step": visit.get("step"), "round": visit.get("round")}
        trust.message(message)
        if departure.under_way(self.home):
            return encode({"status": "ok"}, Message(facts=self._departing(header["job"], message)))
        self._adopt(trust.settings(header.get("settings")))
        if header["job"] == HELLO:
            return encode({"status": "ok"}, Message(facts=self._introduction()))
        if header["job"] not in JOBS:
            raise UserError(f"unknown job '{header['job']}'; is this site's pfeddsh older than the coordinator's?")
        if header["job"] == "score":
            score = self._score(decode_call(trust.visit(header), message, self._memory))
            return encode({"status": "ok"}, self._released("score", message, score))
        if header["job"] == "judge":
            call = decode_call(trust.visit(header), message, self._memory)
            verdict, _ = self.method.judge(call.message, self.data, call.memory, call.visit)
            return encode({"status": "ok"}, self._released("judge", message, verdict))
        same = hashlib.sha256(body).hexdigest()
        if self._facts["last"] != same:
            self.budget.check(header["job"], self.method.expected_card().tensors)
            self._work(decode_call(trust.visit(header), message, self._memory), same)
        return encode({"status": "ok"}, self._reply)

    def _work(self, call: Call, fingerprint: str) -> None:
        """Run a call, keep what it left, and note a visit that is to be repeated alone."""
        with call.visit.seeded():
            reply, memory = getattr(self.method, call.job)(call.message, self.data, call.memory, call.visit)
        released = self._released(call.job, call.message, reply)
        if call.job == "card":
            self._check_fit(released)
        self.budget.spend(call.job, reply.tensors)
        self._reply, self._memory = released, memory
        if call.job == "card":
            self._facts["visits"] = []
        elif call.job == "local":
            self._facts["visits"].append(asdict(call.visit))
        elif call.job in ("settle", "keep") or reply.facts.get("accepted"):
            self._keep_model(call)
        self._facts["last"] = fingerprint
        parts = {"memory": self._memory, "reply": self._reply, "site": Record(facts=self._facts)}
        write_record(self.home / "memory.safetensors", bundle(parts))

    def _released(self, job: str, call: Message, reply: Message) -> Message:
        """What may leave of a reply. It is stored as it leaves: asked again, the site does not draw other noise."""
        return release(self.policy, job, call, reply, len(self.data.train[1]))

    def _check_fit(self, card: Message) -> None:
        """A card that the coordinator would have to refuse for want of what the policy withholds does not leave.

        So this site is not turned away: it waits, and is told what to change.
        """
        (self.home / UNFIT).unlink(missing_ok=True)
        try:
            self.method.check_card(card)
        except BadMessage:
            lacking = ", ".join(sorted(withheld(card)))
            if not lacking:
                raise
            why = (
                f"the method {self._settings['method']} cannot do without what this site's policy withholds: {lacking}"
            )
            write_text(self.home / UNFIT, why + "\n")
            raise Unfit(why) from None

    def record(self, body: bytes, status: str) -> None:
        """Write down a message that is about to leave."""
        details: dict[str, Any] = {"status": status}
        if status == "ok" and self._about["job"] == "local" and self.policy.clip:
            details |= {"clip": self.policy.clip, "noise": self.policy.noise, "epsilon": self.budget.epsilon()}
        self._audit.note(self._about, body, details)

    def _score(self, call: Call) -> Message:
        """Accuracy of the served model; the local-only control's goes with it, once it has caught up."""
        reply, _ = self.method.score(call.message, self.data, call.memory, call.visit)
        self._keep_model(call)  # what is measured is what is used
        while self.idle_work():
            pass
        if self._control.tensors:
            _, memory = self._alone.settle(Message(), self.data, self._control, call.visit)
            alone, _ = self._alone.score(Message(), self.data, memory, call.visit)
            reply.facts[CONTROL] = alone.facts["correct"]["acc"]
        return reply

    def idle_work(self) -> bool:
        """Repeat one visit alone, for the control behind PA; False if there is nothing to do."""
        if not self._settings:
            return False
        visits = self._facts["visits"]
        done = self._control.facts["done"] if self._control.facts["of"] == visits[:1] else 0
        if done >= len(visits):
            return False
        memory, visit = self._control if done else Memory(), Visit(**visits[done])
        with visit.seeded():
            _, memory = self._alone.local(Message(), self.data, memory, visit)
        self._control = Memory(memory.tensors, {"done": done + 1, "of": visits[:1]})
        write_record(self.home / "control.safetensors", self._control, durable=False)
        return True

    def _departing(self, job: str, message: Message) -> dict[str, Any]:
        """A site that leaves says so, takes the confirmation, and does nothing else. Its data are not needed for it."""
        if job == HELLO:
            return {"name": self.name, "key": self.key, "train": 1, "test": 1, "leaving": True}
        if job != FAREWELL:
            raise UserError("this site is leaving the federation")
        departure.confirm(self.home, message.facts)
        return {}

    def _introduction(self) -> dict[str, Any]:
        train, test = len(self.data.train[1]), len(self.data.test[1])
        return {"name": self.name, "key": self.key, "train": train, "test": test}

    # What is kept

    def _adopt(self, settings: dict[str, Any]) -> None:
        """Build the method and read the data, at the first call and if the federation's settings change."""
        if settings == self._settings:
            return
        if is_reference(method := settings["method"]) and method not in self.allowed:
            raise UserError(f"the coordinator wants the method {method}; if you trust it, join with --allow {method}")
        networks.find(settings["model"], self.allowed)  # a coordinator must not say what code runs here
        task = Task.create(len(settings["classes"]), settings["seed"], settings["model"], settings["shape"])
        self.method = registry.create(settings["method"], settings["options"], task)
        self._alone = Local(task, Options())
        dataset = load(self.data_path, class_names=tuple(settings["classes"]), shape=task.model.shape)
        mean, std = (np.array(settings[name], dtype=np.float32) for name in ("mean", "std"))
        self.data = SiteData(replace(dataset, mean=mean, std=std))
        self._settings = settings

    def _load(self) -> tuple[Memory, Message, dict[str, Any]]:
        path = self.home / "memory.safetensors"
        if not path.exists():
            return Memory(), Message(), {"last": "", "visits": []}
        try:
            parts = unbundle(read_record(path))
        except Damaged as error:
            raise UserError(f"{error}; restore it from a backup, or join under a new key in a new folder") from error
        return parts["memory"], parts["reply"], parts["site"].facts

    def _load_control(self) -> Memory:
        try:
            return read_record(self.home / "control.safetensors")
        except Damaged:
            return Memory(facts={"done": 0, "of": []})  # computed again when there is time

    def _keep_model(self, call: Call) -> None:
        """The model this site now uses, for `export` and `predict`; the one before it stays as last known good."""
        s = self._settings
        model = self.method.current(call.message, self.data, self._memory)
        parts = {"theta": self.method.folded(model), "statistics": model.statistics, "gates": model.gates}
        tensors = {name: part for name, part in parts.items() if part is not None}
        facts = {name: s[name] for name in ("method", "classes", "mean", "std", "model")}
        facts |= {"shape": list(self.method.model.shape), "step": call.visit.step, "samples": len(self.data.train[1])}
        record, path = Record(tensors, facts), self.home / "model.safetensors"
        try:
            if digest(read_record(path)) == digest(record):
                return
            os.replace(path, self.home / "model.previous.safetensors")
        except Damaged:
            pass
        write_record(path, record)
