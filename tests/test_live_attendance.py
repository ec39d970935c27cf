"""Who does not train now, no more, or never answers: it is passed over, said, and costs no round of the others."""

import pytest
from conftest import events
from live_sites import FakeNetwork, federation, run_in_process, shards

from pfeddsh.live.coordinator import attendance
from pfeddsh.live.coordinator.attendance import Attendance
from pfeddsh.live.coordinator.engine import read_reply
from pfeddsh.live.coordinator.status import read_status
from pfeddsh.live.exchange import Absent, NotNow
from pfeddsh.live.site import budget
from pfeddsh.live.site.policy import OPEN, NoTraining
from pfeddsh.live.wire import encode
from pfeddsh.messages import Message


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    return shards(tmp_path_factory.mktemp("data"), 2)


def run(tmp_path, paths, fault=lambda header, name, body: body, policy=OPEN, **changes):
    """What was asked of whom, and the notices."""
    federation(tmp_path / "server", steps=1, abandon_after=0.3, offline_after=0.1, **changes)
    network = FakeNetwork()
    for k, path in enumerate(paths):
        site = network.add(100 + k, tmp_path / f"site-{k}", path)
        site.policy = site.budget.policy = policy
    network.fault = fault
    run_in_process(tmp_path / "server", network)
    return network, [notice.text for notice in read_status(tmp_path / "server").notices]


def uploads(network, name):
    return [round for job, who, _, round in network.calls if (job, who) == ("local", name)]


def test_a_site_that_trains_once_a_day_is_waited_for_and_no_round_is_empty(tmp_path, paths, monkeypatch):
    """The next day begins when the site has said that it trains no more today."""
    days = [0]

    def until_tomorrow():
        days[0] += 1
        return 0.5  # more than the others are waited for

    monkeypatch.setattr(budget, "_today", lambda: str(days[0]))
    monkeypatch.setattr(budget, "_until_tomorrow", until_tomorrow)
    rules = OPEN.model_copy(update={"rounds_a_day": 1})
    network, notices = run(tmp_path, paths[:1], policy=rules, batch_min=1, rounds_first=4)
    assert uploads(network, "site-0") == [0, 1, 1, 2, 2, 3, 3], "it is not asked again before its time"
    rounds = [event for event in events(tmp_path / "server") if event["event"] == "round"]
    assert [len(event["norms"]) for event in rounds] == [1, 1, 1, 1]
    assert len(notices) == 3 and all("site-0 trains again in" in text for text in notices)


def test_a_site_whose_budget_is_spent_is_served_and_not_asked_to_train_again(tmp_path, paths, monkeypatch):
    check = budget.Budget.check

    def spent(self, job, asked=()):
        if job == "local" and self.rounds >= 2:
            raise NoTraining("this site's privacy budget is spent", None)
        check(self, job, asked)

    monkeypatch.setattr(budget.Budget, "check", spent)
    network, notices = run(tmp_path, paths[:1], batch_min=1, rounds_first=9)
    assert uploads(network, "site-0") == [0, 1, 2]
    assert notices == ["site-0 is served and trains no more: this site's privacy budget is spent"]
    assert (tmp_path / "site-0" / "model.safetensors").exists()
    assert [client.state for client in read_status(tmp_path / "server").clients] == ["served"]


def test_a_site_that_fails_again_and_again_is_passed_over(tmp_path, paths):
    failure = encode({"status": "error", "reason": "no"}, Message())

    def fault(header, name, body):
        return failure if (header["job"], name) == ("local", "site-1") else body

    network, notices = run(tmp_path, paths, fault, batch_min=2, rounds_first=8)
    assert uploads(network, "site-0") == list(range(8))
    assert uploads(network, "site-1") == [0, 1, 2], "then it is passed over for a while"
    assert notices == ["site-1 is passed over: 3 times in a row it sent no upload (failed at the site: no)"]


@pytest.fixture
def clock(monkeypatch):
    now = [1000.0]
    monkeypatch.setattr("pfeddsh.live.coordinator.attendance.time.monotonic", lambda: now[0])
    return now


def test_whoever_is_silent_is_asked_ever_more_rarely_until_it_answers_or_connects_anew(clock):
    node = {0: 7}
    people = Attendance(600.0, node.get)
    silence = Absent("no answer within 600 s")
    for _ in range(attendance.SILENT):
        assert people.passed_over(0) is None
        said = people.missed(0, silence)
    assert "passed over" in said and people.passed_over(0) and people.silent(0)
    for wait in (600, 1200, 2400):
        clock[0] += wait - 1
        assert people.passed_over(0)
        clock[0] += 1
        assert people.passed_over(0) is None
        assert people.missed(0, silence) is None, "it was said"
    node[0] = 8
    assert people.passed_over(0) is None
    people.uploaded(0)
    people.missed(0, silence)
    assert people.passed_over(0) is None, "it starts anew"
    node[0] = None
    for _ in range(9):
        people.missed(0, Absent("not connected"))
    assert people.passed_over(0) is None, "who is away is not silent"


def test_a_promise_is_believed_once_for_each_upload(clock):
    people = Attendance(600.0, lambda client: 7)
    later = NotNow("tomorrow", 100.0)
    people.missed(0, later)
    assert people.promised([0, 1]) == clock[0] + 100 and not people.silent(0)
    clock[0] += 100
    assert people.promised([0]) is None
    for _ in range(attendance.SILENT):
        people.missed(0, later)
    assert people.promised([0]) is None and people.silent(0)


@pytest.mark.parametrize("seconds", [-1, 1e9, float("nan"), 10**400, "soon", [1]])
def test_a_time_that_means_nothing_is_no_promise(seconds):
    with pytest.raises(Absent) as told:
        read_reply(encode({"status": "later", "reason": "x", "seconds": seconds}, Message()))
    assert not isinstance(told.value, NotNow)
