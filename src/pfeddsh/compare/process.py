"""One task of a comparison, in a process of its own: a run that shares its steps, or the controls of some batches.

The process reads its job from a pipe and ends when that does, so none outlives whoever started it.
"""

import os
import shutil
import signal
import socket
import sys
import threading
import time
import traceback
import warnings
from typing import TextIO

from pfeddsh.compare.cache import open_cache
from pfeddsh.compare.job import Job
from pfeddsh.compare.keys import code, stops
from pfeddsh.compare.sharing import SharedCheckpoints
from pfeddsh.configure import build
from pfeddsh.errors import UserError
from pfeddsh.federation import engines, forker
from pfeddsh.federation.allocation import keep_freed_memory
from pfeddsh.federation.alone import accuracy
from pfeddsh.federation.run import begin, complete, one_thread
from pfeddsh.federation.workbench import CONTROL, Call, Workbench
from pfeddsh.storage import controls
from pfeddsh.storage.files import Busy, locked

PATIENCE = 20.0  # seconds to wait for a folder whose last process is still on its way out


def run(job: Job) -> None:
    """Do the job: from wherever the run's own folder or the cache say we are, to results.json."""
    if job.code != code():
        why = "edited since then, or of another machine"
        raise UserError(f"pfeddsh or torch is another version than the one that made the plan, {why}; start again")
    config = build(job.config, job.name)
    engine = {"engine": "pool", "workers": job.workers} if job.workers > 1 else {"engine": "serial"}
    bench = Workbench(config.model_copy(update=engine))
    if job.kind == "controls":
        _controls(bench, job.steps)
        return
    out = job.out / job.name
    out.mkdir(parents=True, exist_ok=True)
    with locked(out):
        if not (out / "results.json").exists():
            begin(config, bench, out)
            found = stops(config, bench.dataset.fingerprint)
            complete(bench, out, [], SharedCheckpoints(out, job.name, found, set(job.keep), open_cache(job.limit)))
        if not job.keep_states:
            shutil.rmtree(out / "state", ignore_errors=True)


def _controls(bench: Workbench, steps: list[int]) -> None:
    """Every client of these batches alone, unless it is known."""
    serial = engines.Serial(bench)
    joined = {client: step for step in steps for client in bench.plan.batch(step)}

    def alone(client: int) -> float:
        began, step = time.monotonic(), joined[client]
        found = accuracy(serial.submit(Call(CONTROL, bench.visit(step, 0, client))).result()[0])
        controls.book(bench.config, bench.dataset.fingerprint, step, time.monotonic() - began)
        return found

    with one_thread():
        controls.complete(bench.config, bench.dataset.fingerprint, steps, alone)


def serve(handle: int) -> None:
    """A forked process's side: the job comes in, an exit code goes out."""
    os.setsid()
    pipe = socket.socket(fileno=handle)
    lines = pipe.makefile()
    job = Job.model_validate_json(lines.readline())
    if job.folder.is_dir():
        os.chdir(job.folder)
    if job.workers > 1:
        forker.fork_own_forker(handle)
    try:
        code = run_while_wanted(job, lines)
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    pipe.send(bytes([code]))
    os._exit(code)  # nothing is closed: the thread that waits for the end of `lines` holds them


def main() -> int:
    """The side of a process that was started, on a machine of a cluster."""
    return run_while_wanted(Job.model_validate_json(sys.stdin.readline()), sys.stdin)


def run_while_wanted(job: Job, lines: TextIO) -> int:
    """Do the job, unless `lines` end before: then whoever asked is gone. Returns the exit code."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for whoever started us
    keep_freed_memory()
    threading.Thread(target=_leave_with_the_parent, args=[lines], daemon=True).start()
    warnings.showwarning = lambda message, *_: print(f"warning: {message}", flush=True)
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            run(job)
            return 0
        except UserError as error:
            if isinstance(error, Busy) and time.monotonic() < deadline:
                time.sleep(0.2)
                continue
            print(f"error: {error}", flush=True)
            return 2


def _leave_with_the_parent(lines: TextIO) -> None:
    lines.read()
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
