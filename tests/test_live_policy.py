"""A site's policy holds whatever the coordinator asks for; what it lets go is counted, written down, and paid for."""

import hashlib
import json
import os
import sys

import pytest
import tomli_w
import torch
from conftest import events
from live_sites import FakeNetwork, encode_call, federation, run_in_process, shards

from pfeddsh import cli
from pfeddsh.errors import UserError
from pfeddsh.federation.workbench import Call
from pfeddsh.live.coordinator.engine import LiveBench
from pfeddsh.live.site import audit, budget, policy
from pfeddsh.live.site.calls import Site
from pfeddsh.live.site.join import SiteConfig
from pfeddsh.live.site.policy import OPEN, Policy
from pfeddsh.live.site.status import read_status, render
from pfeddsh.live.site.worker import reply
from pfeddsh.live.wire import decode
from pfeddsh.mechanisms import accounting
from pfeddsh.messages import Message

HYPER = {"method": "pfeddsh-hyper", "options": {"hidden": 16}}  # asks for cards
STRICT = Policy(measures=False, clip=1.0, noise=8.0, epsilon=3.0)


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    return shards(tmp_path_factory.mktemp("data"), 3)


class Asked:
    """A coordinator of one site, which asks for whatever it likes."""

    def __init__(self, folder, **changes):
        self.config = federation(folder, **changes)
        self.bench = LiveBench(self.config, [(0,)])
        self.served = Message({"theta": self.bench.task.theta0})

    def body(self, job, round=0, message=None):
        call = Call(job, self.bench.visit(1, round, 0), self.served if message is None else message)
        return encode_call(call, self.config.for_sites())

    def __call__(self, site, job, round=0, message=None):
        return decode(reply(site, self.body(job, round, message)))


def site(home, data, rules=OPEN):
    home.mkdir(exist_ok=True)
    return Site(home, "site", "key", str(data), policy=rules)


def log(home):
    """The lines that are whole."""
    return [json.loads(line) for line in (home / audit.FILE).read_text().splitlines() if line.endswith("}")]


def test_the_file_that_join_makes_is_the_safe_default(tmp_path):
    assert policy.create(tmp_path) and not policy.create(tmp_path)
    assert policy.load(tmp_path) == Policy()
    assert Policy().histogram == "withhold" and not Policy().statistics
    (tmp_path / policy.FILE).write_text("histogram = 'withold'")
    with pytest.raises(UserError, match=r"policy\.toml: histogram"):
        policy.load(tmp_path)
    (tmp_path / policy.FILE).unlink()
    with pytest.raises(UserError, match="nothing may leave"):
        policy.load(tmp_path)


@pytest.mark.parametrize(
    ("rules", "why"),
    [
        ({"epsilon": 1.0, "measures": False}, "noise = 0"),
        ({"epsilon": 1.0, "clip": 1.0, "noise": 1.0}, "measures = true"),
        ({"epsilon": 1.0, "clip": 1.0, "noise": 1.0, "measures": False, "histogram": "exact"}, "histogram = exact"),
        ({"noise": 1.0}, "without a clip"),
    ],
)
def test_a_policy_that_cannot_be_kept_is_refused(rules, why):
    with pytest.raises(ValueError, match=why):
        Policy(**rules)


def test_the_policy_holds_whatever_the_coordinator_asks_for(tmp_path, paths):
    ask, cards = Asked(tmp_path / "server"), Asked(tmp_path / "hyper", **HYPER)
    closed = site(tmp_path / "site", paths[0], Policy(measures=False, clip=0.01))
    _, upload = ask(closed, "local")
    assert float(upload["delta"].double().norm()) <= 0.01 and upload.facts.keys() == {"samples"}
    _, report = ask(closed, "settle")
    assert not report.tensors and report.facts["withheld"] == ["statistics"]
    header, score = ask(closed, "score")
    assert header["status"] == "error" and "measurements" in header["reason"] and not score.facts
    ask(closed, "keep")
    _, answer = ask(closed, "receive", 1)
    assert answer.facts == {"accepted": False}
    assert not ask(closed, "card")[1].tensors, "the method needs none"
    header, card = cards(closed, "card")
    assert header["status"] == "error" and "withholds: histogram, image" in header["reason"] and not card.tensors
    told = site(tmp_path / "open", paths[0])
    assert ask(told, "settle")[1].tensors.keys() == {"statistics"}
    assert cards(told, "card")[1].tensors.keys() == {"signature", "histogram", "image"}


def test_a_histogram_leaves_as_the_policy_says(tmp_path, paths):
    ask = Asked(tmp_path / "server", **HYPER)
    told = {}
    for k, rule in enumerate(("exact", "rounded", "noised")):
        own = site(tmp_path / f"site-{k}", paths[0], Policy(histogram=rule, rounding=0.25, statistics=True))
        told[rule] = ask(own, "card")[1]["histogram"]
        assert float(told[rule].sum()) == pytest.approx(1) and bool((told[rule] >= 0).all())
    assert len({tuple(histogram.tolist()) for histogram in told.values()}) == 3
    event = ("laplace", 1.0)
    assert budget.Budget(tmp_path / "site-2", Policy()).spent == {event: 1}
    plain = Asked(tmp_path / "plain")  # asks for no histogram, so none is paid for
    assert not plain(site(tmp_path / "site-3", paths[0], Policy(histogram="noised")), "card")[1].tensors
    assert not budget.Budget(tmp_path / "site-3", Policy()).spent


def test_noise_at_a_site_does_not_follow_from_any_seed(tmp_path, paths, monkeypatch):
    """The same call at the same site: what simulation would draw is not what is drawn, and never twice the same."""
    ask = Asked(tmp_path / "server", method="pfeddsh-hyper", options={"hidden": 16, "noise": 0.2})
    rules = Policy(histogram="exact", statistics=True, clip=1.0, noise=1.0)
    cards, uploads = [], []
    for k in range(2):
        own = site(tmp_path / f"site-{k}", paths[0], rules)
        cards.append(ask(own, "card")[1]["histogram"])
        uploads.append(ask(own, "local")[1]["delta"])
    assert not torch.equal(cards[0], cards[1]) and not torch.equal(uploads[0], uploads[1])
    ask.bench.method.simulated = True
    visit = ask.bench.visit(1, 0, 0)
    drawn, _ = ask.bench.method.card(Message(), own.data, Message(), visit)
    assert not any(torch.equal(drawn["histogram"], card) for card in cards)
    own.method.simulated = True  # the same with noise that the coordinator can draw itself
    known, _ = own.method.card(Message(), own.data, Message(), visit)
    assert torch.equal(drawn["histogram"], known["histogram"])
    # every draw comes from the system: with a system that always says the same, the noise is the same
    monkeypatch.setattr(os, "urandom", lambda count: b"\x55" * count)
    fixed = [ask(site(tmp_path / f"fixed-{k}", paths[0], rules), "local")[1]["delta"] for k in range(2)]
    assert torch.equal(*fixed)


def test_asked_again_a_site_does_not_draw_other_noise(tmp_path, paths):
    ask = Asked(tmp_path / "server")
    rules = Policy(clip=1.0, noise=1.0)
    first = reply(site(tmp_path / "site", paths[0], rules), ask.body("local"))
    assert reply(site(tmp_path / "site", paths[0], rules), ask.body("local")) == first
    assert budget.Budget(tmp_path / "site", rules).spent == {("gaussian", 0.5): 1}


def test_a_budget_is_the_accountants_and_ends_training_but_not_serving(tmp_path, paths):
    ask = Asked(tmp_path / "server")
    home = tmp_path / "site"
    ask(site(home, paths[0], STRICT), "card")
    most = max(n for n in range(20) if accounting.epsilon({("gaussian", 4.0): n}, 1e-5) <= 3.0)
    assert 1 < most < 19
    for round in range(most):
        own = site(home, paths[0], STRICT)  # started anew each time: what was spent is on disk
        assert ask(own, "local", round)[0]["status"] == "ok"
    assert own.budget.epsilon() == accounting.epsilon({("gaussian", 4.0): most}, 1e-5) <= 3.0
    own = site(home, paths[0], STRICT)
    for round in (most, most + 1):
        header, refused = ask(own, "local", round)
        assert header["status"] == "later" and "budget is spent" in header["reason"] and not refused.tensors
        assert header["seconds"] is None
    for job in ("settle", "keep", "receive"):
        assert ask(own, job, most)[0]["status"] == "ok"
    assert (home / "model.safetensors").exists()
    looser = STRICT.model_copy(update={"measures": True, "epsilon": 0.0})
    assert ask(site(home, paths[0], looser), "score")[0]["status"] == "ok"


def test_so_many_rounds_a_day_and_more_tomorrow(tmp_path, paths, monkeypatch):
    ask = Asked(tmp_path / "server")
    rules = OPEN.model_copy(update={"rounds_a_day": 2})
    told = [ask(site(tmp_path / "site", paths[0], rules), "local", round)[0] for round in range(3)]
    assert [header["status"] for header in told] == ["ok", "ok", "later"] and 0 < told[2]["seconds"] <= 86400
    monkeypatch.setattr(budget, "_today", lambda: "2999-01-01")
    assert ask(site(tmp_path / "site", paths[0], rules), "local", 3)[0]["status"] == "ok"


def test_every_message_is_in_the_audit_log_and_a_changed_line_shows(tmp_path, paths):
    ask, home = Asked(tmp_path / "server"), tmp_path / "site"
    sent = [reply(site(home, paths[0]), ask.body(job)) for job in ("card", "local", "settle")]
    sent.append(reply(site(home, paths[0]), b"nonsense"))
    lines = log(home)
    assert [line["job"] for line in lines] == ["card", "local", "settle", "error"]
    assert [line["bytes"] for line in lines] == [len(body) for body in sent]
    assert [line["sha256"] for line in lines] == [hashlib.sha256(body).hexdigest() for body in sent]
    assert all(line["purpose"] and line["time"] for line in lines)
    assert audit.verify(home) == (4, None)
    with (home / audit.FILE).open("a") as file:
        file.write('{"cut')  # killed while writing
    reply(site(home, paths[0]), ask.body("keep"))
    assert log(home)[-1]["job"] == "keep"
    content = (home / audit.FILE).read_text().replace('"job": "local"', '"job": "score"')
    (home / audit.FILE).write_text(content)
    assert audit.verify(home)[1] == 3


def test_nothing_leaves_that_cannot_be_written_down(tmp_path, paths, monkeypatch):
    ask, own = Asked(tmp_path / "server"), site(tmp_path / "site", paths[0])

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="No space"):
        reply(own, ask.body("local"))


def test_a_line_of_the_audit_log_is_there_as_a_whole_or_not_at_all(tmp_path, monkeypatch):
    """A disk may take a part of what is written."""
    write, room = os.write, [1000]

    def partly(file, data):
        if not room[0]:
            raise OSError(28, "No space left on device")
        written = write(file, data[: min(50, room[0])])
        room[0] -= written
        return written

    book = audit.Audit(tmp_path)
    monkeypatch.setattr(os, "write", partly)
    book.note({"job": "card"}, b"1", {})
    before, room[0] = (tmp_path / audit.FILE).read_bytes(), 70
    with pytest.raises(OSError, match="No space"):
        book.note({"job": "local"}, b"2", {})
    assert (tmp_path / audit.FILE).read_bytes() == before
    room[0] = 1000
    book.note({"job": "local"}, b"2", {})
    assert audit.verify(tmp_path) == (2, None)


def test_a_federation_of_sites_with_policies_onboards_and_logs_every_message(tmp_path, paths):
    federation(tmp_path / "server", steps=1)
    network = FakeNetwork()
    sent = []
    network.fault = lambda header, name, body: (sent.append((name, hashlib.sha256(body).hexdigest())), body)[1]
    rules = [Policy(), Policy(measures=False, clip=1.0, noise=0.001), Policy(histogram="exact", rounds_a_day=1)]
    for k in range(3):
        own = network.add(100 + k, tmp_path / f"site-{k}", paths[k])
        own.policy = own.budget.policy = rules[k]
    run_in_process(tmp_path / "server", network)
    status = json.loads((tmp_path / "server" / "status.json").read_text())
    assert [client["state"] for client in status["clients"]] == ["served"] * 3
    assert [entry["reason"] for entry in status["refused"]] == []
    results = json.loads((tmp_path / "server" / "results.json").read_text())
    assert [value is None for value in results["acc"][0]] == [False, True, False]
    for k in range(3):
        assert [line["sha256"] for line in log(tmp_path / f"site-{k}")] == [d for n, d in sent if n == f"site-{k}"]


def test_a_site_that_withholds_what_the_method_needs_waits_and_both_sides_are_told(tmp_path, paths):
    federation(
        tmp_path / "server", steps=1, method="pfeddsh-hyper", options={"hidden": 16}, batch_min=2, rounds_first=1
    )
    network = FakeNetwork()
    for k, rules in enumerate((OPEN, Policy())):
        own = network.add(100 + k, tmp_path / f"site-{k}", paths[k])
        own.policy = own.budget.policy = rules
    run_in_process(tmp_path / "server", network)
    known = json.loads((tmp_path / "server" / "clients.json").read_text())
    assert [client["released"] for client in known["clients"]] == [False, True] and known["dismissed"] == []
    assert [waiting["name"] for waiting in known["queue"]] == ["site-1"]
    told = [event["reason"] for event in events(tmp_path / "server") if event["event"] == "absent"]
    assert len(told) == 1 and "policy withholds: histogram, image" in told[0]
    home = tmp_path / "site-1"
    SiteConfig(name="site-1", data=str(paths[1])).save(home)
    policy.create(home)
    assert "withholds: histogram, image" in read_status(home).training
    ask = Asked(tmp_path / "other", method="pfeddsh-hyper", options={"hidden": 16})
    assert ask(site(home, paths[1], OPEN), "card")[0]["status"] == "ok" and policy.unfit(home) is None


def test_status_at_a_site_tells_what_is_spent_and_what_has_left(tmp_path, paths, monkeypatch, capsys):
    home = tmp_path / "site"
    rules = {"measures": False, "clip": 1.0, "noise": 8.0, "epsilon": 1.5}
    ask, own = Asked(tmp_path / "server"), site(home, paths[0], Policy(**rules))
    SiteConfig(name="site", data=str(paths[0])).save(home)
    (home / policy.FILE).write_text(tomli_w.dumps(rules))
    for round in range(3):
        ask(own, "local", round)
    monkeypatch.setattr(sys, "argv", ["pfeddsh", "status", str(home), "--json"])
    with pytest.raises(SystemExit) as end:
        cli.main()
    told = json.loads(capsys.readouterr().out)
    done = max(n for n in range(4) if accounting.epsilon({("gaussian", 4.0): n}, 1e-5) <= 1.5)
    assert not end.value.code and told["epsilon_spent"] == accounting.epsilon({("gaussian", 4.0): done}, 1e-5)
    assert told["training"].startswith("ended") and told["rounds_today"] == done < 3 and told["messages"] == 3
    assert "ended: the budget is spent" in "".join(str(c) for c in render(read_status(home)).columns[1].cells)
