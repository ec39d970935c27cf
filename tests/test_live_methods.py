"""Every method that a live federation takes: what a site uses is what it was measured by, and its replies pass."""

from dataclasses import replace

import pytest
import torch
from live_sites import CLASSES, SimulatedSites, encode_call, shards

from pfeddsh.data.datasets import load
from pfeddsh.errors import UserError
from pfeddsh.federation.clients import Simulated
from pfeddsh.federation.engines import Serial
from pfeddsh.federation.loop import Federation
from pfeddsh.federation.run import one_thread
from pfeddsh.federation.workbench import Call
from pfeddsh.live.coordinator.config import build
from pfeddsh.live.coordinator.door import Door
from pfeddsh.live.coordinator.roster import Member
from pfeddsh.live.site.calls import Site
from pfeddsh.live.site.model import read_model
from pfeddsh.live.site.worker import reply
from pfeddsh.live.wire import decode
from pfeddsh.messages import Memory
from pfeddsh.methods.pfeddsh import PFedDSH
from pfeddsh.methods.registry import METHODS
from pfeddsh.storage.checkpoint import Checkpoints

SMALL = {"hidden": 16, "images": 20, "iterations": 2, "replay_steps": 1, "codes": 20}
REFUSED = {
    "joint": "never does", "central": "never does", "hr": "hr-local-head",
    "fedavg-finetune": "may be away", "fedavg-prior-finetune": "may be away",
}  # fmt: skip


def config(method):
    known = METHODS[method].method.Settings.model_fields
    options = {name: value for name, value in SMALL.items() if name in known}
    if method in ("pefll", "odpfl-hn"):
        options.pop("images", None)
    values = {"classes": CLASSES, "rounds_first": 1, "rounds_later": 1, "local_epochs": 1, "method": method}
    return build({**values, "mean": [0.3] * 3, "std": [0.4] * 3, "options": options}, "test")


class Direct(Simulated):
    """Real sites, called without a network; their replies go through the coordinator's door."""

    def __init__(self, bench, engine, sites, settings, door):
        super().__init__(bench, engine)
        self.sites, self.settings, self.door = sites, settings, door

    def ask(self, job, messages, memories, step, round):
        replies = []
        for k, message in messages.items():
            visit = self._bench.visit(step, round, k)
            header, told = decode(reply(self.sites[k], encode_call(Call(job, visit, message), self.settings)))
            assert header == {"status": "ok"}, (job, header)
            member = Member(k, "key", "site", 1, train=64, test=64)
            replies.append((k, (self.door.admit(job, member, message, told), Memory())))
        return replies


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    return shards(tmp_path_factory.mktemp("data"), 3)


@pytest.mark.parametrize("method", [name for name in METHODS if name not in REFUSED])
def test_a_site_uses_the_model_that_was_measured(tmp_path, paths, method):
    live = config(method)
    bench = SimulatedSites(live, [(0, 1), (2,)], paths)
    sites = [Site(tmp_path / str(k), f"site-{k}", "key", str(path)) for k, path in enumerate(paths)]
    for site in sites:
        site.home.mkdir()
    if isinstance(bench.method, PFedDSH):
        short = replace(bench.method.consolidation.inversion, images=20, iterations=2)
        bench.method.consolidation.inversion = short
    engine = Serial(bench)
    clients = Direct(bench, engine, sites, live.for_sites(), Door(bench.method, live.norm_limit))
    run = Federation(bench, engine, Checkpoints(tmp_path / "state"), [], clients)
    with one_thread():
        for step in (1, 2):
            run.step(step, 0)
    for site, path, measured in zip(sites, paths, run.ledger.acc[-1], strict=True):
        data = load(str(path), class_names=tuple(CLASSES), shape=(3, 32, 32))
        answers = read_model(site.home).probabilities(torch.tensor(data.x_test)).argmax(1)
        assert measured == 100 * int((answers == torch.tensor(data.y_test)).sum()) / len(data.y_test)


@pytest.mark.parametrize("method", REFUSED)
def test_what_cannot_run_live_is_refused_before_it_begins(method):
    with pytest.raises(UserError, match=REFUSED[method]):
        config(method)
