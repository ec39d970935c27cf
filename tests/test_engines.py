"""Engines: the same bits whoever does the work, and errors that say where they arose."""

import os
import signal

import pytest
import torch
from conftest import BASIC, assert_same_bits, comparable, events, final_tensors, tiny

from pfeddsh.federation import engines, forker, pool
from pfeddsh.federation import workers as workers_of_pools
from pfeddsh.federation.pool import Pool
from pfeddsh.federation.run import run
from pfeddsh.federation.workbench import CONTROL, Call, Workbench
from pfeddsh.federation.workers import WorkerError, pack, unpack
from pfeddsh.messages import Memory, Message
from pfeddsh.methods.fedavg import FedAvg


@pytest.fixture(scope="module")
def bench():
    """Data and method of the tiny run, with one thread as in a run."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield Workbench(tiny())
    torch.set_num_threads(threads)


@pytest.fixture
def workers(monkeypatch):
    """The worker processes started during the test."""
    started = []

    class Recorded(workers_of_pools.Worker):
        def __init__(self, config):
            super().__init__(config)
            started.append(self)

    monkeypatch.setattr(pool, "Worker", Recorded)
    return started


@pytest.mark.parametrize("method", BASIC)
def test_a_pool_gives_the_same_bits_as_one_process(method, reference, tmp_path, workers):
    serial = reference(method)
    results = run(tiny(method, engine="pool"), tmp_path / "run")
    assert len(workers) == 2
    assert comparable(results) == comparable(serial.results)
    assert_same_bits(final_tensors(tmp_path / "run"), final_tensors(serial.out))
    assert events(tmp_path / "run") == events(serial.out)
    assert not any(worker.alive for worker in workers)


def test_a_killed_worker_is_replaced_and_the_bits_stay_the_same(reference, tmp_path, workers):
    class Killer:
        def event(self, kind, facts):
            if (kind, facts["step"], facts.get("round")) == ("round", 1, 1):
                os.kill(workers[0].pid, signal.SIGKILL)

    results = run(tiny("fedper", engine="pool"), tmp_path / "run", [Killer()])
    assert len(workers) == 3
    assert comparable(results) == comparable(reference("fedper").results)


def test_workers_come_of_one_process_which_is_replaced_if_it_dies(bench):
    first = workers_of_pools.Worker(tiny())
    parent = forker._forkers[os.getpid()].pid
    first.close()
    os.kill(parent, signal.SIGKILL)
    os.waitpid(parent, 0)
    again = workers_of_pools.Worker(tiny())
    call = Call("local", bench.visit(1, 0, 0), Message({"theta": bench.task.theta0}))
    assert again.run(call)[0].facts["samples"] == len(bench.parts.train[0])
    again.close()
    assert not first.alive and not again.alive


def test_an_error_in_a_worker_carries_the_call_and_the_workers_traceback(bench):
    hired = Pool(tiny(engine="pool", workers=1))
    try:
        good = Call("local", bench.visit(2, 3, 5), Message({"theta": bench.task.theta0}))
        bad = Call("local", bench.visit(2, 3, 5), Message({"tehta": bench.task.theta0}))
        failed, worked = hired.submit(bad), hired.submit(good)
        with pytest.raises(WorkerError, match=r"local, step 2, round 3, client 5 failed in a worker") as error:
            failed.result()
        assert "Traceback" in str(error.value)
        assert "KeyError: 'theta'" in str(error.value)
        upload, _ = worked.result()
        assert upload.facts["samples"] == len(bench.parts.train[5])
    finally:
        hired.close()


def test_what_cannot_be_sent_either_way_is_the_calls_error_and_the_pool_goes_on(bench, tmp_path, monkeypatch):
    (tmp_path / "odd_reply.py").write_text(
        "from pfeddsh.methods.fedavg import FedAvg\n"
        "class Odd(FedAvg):\n"
        "    def local(self, message, data, memory, visit):\n"
        "        upload, memory = super().local(message, data, memory, visit)\n"
        "        upload.facts['loss'] = {upload.facts['loss']} if visit.client else upload.facts['loss']\n"
        "        return upload, memory\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    hired = Pool(tiny("odd_reply:Odd", engine="pool", workers=1))
    try:
        served, odd = Message({"theta": bench.task.theta0}), Message({"theta": [1.0]})
        calls = [("reply", 1, served), ("message", 0, odd), ("good", 0, served)]
        done = {name: hired.submit(Call("local", bench.visit(1, 0, k), m)) for name, k, m in calls}
        with pytest.raises(WorkerError, match="set is not JSON serializable"):
            done["reply"].result(timeout=300)
        with pytest.raises(AttributeError, match="contiguous"):
            done["message"].result(timeout=300)
        assert done["good"].result(timeout=300)[0].facts["samples"] == len(bench.parts.train[0])
    finally:
        hired.close()


def test_an_error_in_the_serial_engine_says_where_it_arose_and_what_was_given(tmp_path, monkeypatch):
    good = FedAvg.local

    def fails(self, message, data, memory, visit):
        if (visit.step, visit.round) == (2, 1):
            raise ZeroDivisionError("no images")
        return good(self, message, data, memory, visit)

    monkeypatch.setattr(FedAvg, "local", fails)
    with pytest.raises(ZeroDivisionError, match="no images") as error:
        run(tiny(), tmp_path / "run")
    client = tiny().plan().cohort(2, 1)[0]
    (note,) = error.value.__notes__
    assert f"local, step 2, round 1, client {client}" in note
    assert "theta[62006]" in note
    assert "memory (nothing)" in note
    assert not (tmp_path / "run" / "results.json").exists()


def test_serial_background_work_waits_until_it_is_asked_for(bench):
    engine = engines.Serial(bench)
    call = Call(CONTROL, bench.visit(1, 0, bench.plan.batch(1)[0]))
    future = engine.submit(call, background=True)
    assert not future.done()
    reply, _ = future.result()
    assert reply.facts["count"] == len(bench.parts.test[bench.plan.batch(1)[0]])
    assert future.done()


def test_a_call_survives_packing(bench):
    call = Call("local", bench.visit(2, 1, 7), Message({"theta": torch.ones(3)}), Memory({"head": torch.zeros(2)}))
    again = unpack(pack(call))
    assert (again.job, again.visit) == (call.job, call.visit)
    assert_same_bits(again.message.tensors, call.message.tensors)
    assert_same_bits(again.memory.tensors, call.memory.tensors)


def test_work_depends_on_what_it_is_given_and_not_on_what_was_done_before(bench):
    engine = engines.Serial(bench)
    calls = [
        Call("local", bench.visit(1, 0, k), Message({"theta": bench.task.theta0})) for k in bench.plan.batch(1)[:2]
    ]
    there = [engine.submit(call).result()[0] for call in calls]
    back = [engine.submit(call).result()[0] for call in reversed(calls)]
    for one, other in zip(there, reversed(back), strict=True):
        assert_same_bits(one.tensors, other.tensors)
        assert one.facts == other.facts
    assert not torch.equal(there[0]["theta"], bench.task.theta0)
