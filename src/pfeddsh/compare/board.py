"""What a person sees while a comparison runs: all of it with the time left, and every task that is being worked on."""

import time
from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from pfeddsh.compare.tasks import ProcessTask

PLAIN_INTERVAL = 30.0  # seconds between lines when the output is not a terminal


class Board:
    """Live bars in a terminal, plain lines elsewhere. The time left comes from the work done since the start."""

    def __init__(self, tasks: Sequence[ProcessTask], console: Console, quiet: bool = False) -> None:
        self._tasks, self._console, self._quiet = tasks, console, quiet
        self._worked = {task.name: task.done() for task in tasks}
        self._before = sum(self._worked.values())
        self._total = sum(task.amount() for task in tasks)
        self._runs = sum(task.job.kind == "run" for task in tasks)
        self._over: set[str] = set()
        self._began = self._spoke = time.monotonic()
        self._progress = Progress(
            TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:3.0f} %  {task.fields[text]}"),
            console=console, transient=True, disable=not console.is_terminal,
        )  # fmt: skip
        self._all = self._progress.add_task("all", total=max(self._total, 1e-9), text="")
        self._bars: dict[str, TaskID] = {}

    def __enter__(self) -> "Board":
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def finished(self, task: ProcessTask, line: str) -> None:
        self._over.add(task.name)
        self._worked[task.name] = task.amount()
        if (bar := self._bars.pop(task.name, None)) is not None:
            self._progress.remove_task(bar)
        if not self._quiet:
            self._console.print(line, soft_wrap=True, highlight=False)

    def look(self, running: Sequence[ProcessTask]) -> None:
        for task in running:
            self._worked[task.name] = worked = task.done()
            if task.name not in self._bars:
                self._bars[task.name] = self._progress.add_task(f"  {escape(task.name)}", total=None, text="")
            self._progress.update(self._bars[task.name], completed=worked, total=max(task.amount(), 1e-9))
        now, done = time.monotonic(), sum(self._worked.values())
        over = sum(task.name in self._over for task in self._tasks if task.job.kind == "run")
        text = f"{over} of {self._runs} runs  {self._left(done, now)}"
        self._progress.update(self._all, completed=done, text=text)
        if not self._console.is_terminal and now - self._spoke > PLAIN_INTERVAL:
            self._spoke = now
            names = "" if self._quiet else "  now: " + ", ".join(task.name for task in running)
            share = 100 * done / max(self._total, 1e-9)
            self._console.print(f"{share:.0f} %  {text}{names}", soft_wrap=True, highlight=False)

    def _left(self, done: float, now: float) -> str:
        gained = done - self._before
        if gained <= 0:
            return ""
        return f"{clock((now - self._began) / gained * (self._total - done))} left"


def clock(seconds: float) -> str:
    """Hours, minutes, seconds.

    >>> clock(3725)
    '1:02:05'
    """
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}"
