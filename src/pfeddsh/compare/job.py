"""What a task's process is told and how it is started: all that is needed to hand out work, and light to import."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel


class Job(BaseModel):
    """What a task is told; plain JSON, so that it can go to another machine."""

    kind: Literal["run", "controls"]
    name: str
    out: Path  # the comparison's folder
    folder: Path  # where paths in the configuration start, if this machine has it
    environment: dict[str, str]
    config: dict[str, Any]
    code: str
    keep: list[str] = []  # keys of the states that others will want
    limit: int = 0  # of the cache, in bytes
    workers: int = 1
    keep_states: bool = False
    steps: list[int] = []  # whose batches, for controls

    @property
    def log(self) -> Path:
        return self.out / "logs" / f"{self.name}.txt"


def start(job: Job) -> "subprocess.Popen[str]":
    """Start the job's process; closing its standard input ends it."""
    environment = {**os.environ, **job.environment, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    folder = job.folder if job.folder.is_dir() else None
    job.log.parent.mkdir(parents=True, exist_ok=True)
    with job.log.open("w") as log:
        command = [sys.executable, "-m", "pfeddsh.compare.process"]
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=log, stderr=log, env=environment, cwd=folder, text=True,
            start_new_session=True,
        )  # fmt: skip
    assert process.stdin
    try:
        process.stdin.write(job.model_dump_json() + "\n")
        process.stdin.flush()
    except BrokenPipeError:
        pass  # it died at once; its exit code and log say why
    return process
