"""A comparison from its plan to its table: the folder, the lock, the tasks, and what the user is told."""

import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path

import typer
from rich.console import Console
from rich.markup import escape

from pfeddsh.compare import summary
from pfeddsh.compare.board import Board
from pfeddsh.compare.cache import open_cache
from pfeddsh.compare.plan import Plan
from pfeddsh.compare.scheduler import Machines, ThisMachine, execute
from pfeddsh.compare.tasks import ProcessTask, fingerprints, tasks
from pfeddsh.errors import UserError
from pfeddsh.storage.files import locked, write_text

TAIL = 12  # lines of a failed run's log


@dataclass
class Comparison:
    """A plan in a folder: `compare.toml` and a run directory for every run."""

    plan: Plan
    out: Path
    slots: int
    limit: int  # of the cache, in bytes
    keep_states: bool = False

    def __post_init__(self) -> None:
        self.runs = self.plan.runs()
        self.cache = open_cache(self.limit)
        held = self.out / "compare.toml"
        if held.exists() and held.read_text() != self.plan.toml():
            go_on = f"choose another --out, or continue it with `pfeddsh compare --out {self.out}`"
            raise UserError(f"{self.out} holds another plan; {go_on}")
        for run in self.runs:
            begun = self.out / run.name / "config.toml"
            if begun.exists() and begun.read_text() != run.config.toml():
                go_on = "remove that folder or choose another --out"
                raise UserError(f"{begun.parent} was begun with other settings, defaults have changed since; {go_on}")
        self.data = fingerprints(self.runs)  # before anything is written: an unknown dataset leaves no trace

    def tasks(self) -> list[ProcessTask]:
        return tasks(self.runs, self.data, self.out, self.cache, self.keep_states)

    def forecast(self, console: Console) -> None:
        """Print the plan."""
        view, text = summary.forecast(self.tasks(), self.runs, self.out, self.cache, self.slots)
        console.print(view)
        console.print(text, highlight=False, soft_wrap=True)

    def run(self, engine: str, console: Console) -> bool:
        """Do what is left of the plan and print the table; whether all runs are there."""
        self.out.mkdir(parents=True, exist_ok=True)
        with locked(self.out):
            write_text(self.out / "compare.toml", self.plan.toml())
            began = time.monotonic()
            try:
                failed = self._execute(engine, console)
            except KeyboardInterrupt:
                text = f"interrupted; `pfeddsh compare --out {self.out}` continues from here"
                Console(stderr=True).print(text, soft_wrap=True)
                raise typer.Exit(130) from None
            console.print(summary.table(self.runs, self.out))
            text = summary.savings(self.runs, self.data, self.out, time.monotonic() - began, self.slots)
            console.print(text, highlight=False, soft_wrap=True)
        for task in failed:
            console.print(
                f"[red]failed:[/] {escape(task.name)}; the end of {escape(str(task.job.log))}:", soft_wrap=True
            )
            console.print(escape("\n".join(deque(_lines(task), TAIL))), highlight=False, soft_wrap=True)
        if failed:
            console.print(f"{len(failed)} failed; `pfeddsh compare --out {self.out}` tries again", soft_wrap=True)
        console.print(f"results in {self.out}", soft_wrap=True)
        return not failed

    def _execute(self, engine: str, console: Console) -> list[ProcessTask]:
        """Run the tasks under the eyes of the user; those that failed."""
        todo, failed = self.tasks(), list[ProcessTask]()
        if not todo:
            return []
        with Board(todo, console) as board:

            def finished(task: ProcessTask, status: int) -> None:
                for line in _lines(task):
                    if line.startswith("warning: "):
                        text = f"{escape(task.name)}: [yellow]warning:[/] {escape(line[9:])}"
                        console.print(text, soft_wrap=True, highlight=False)
                found = summary.results(task.out)
                failed.extend([task] if status else [])
                says = "[red]failed[/]" if status else summary.line(found) if found else "done"
                board.finished(task, f"{escape(task.name)}: {says}")

            where = _engine(engine, self.slots)
            self.slots = where.slots
            try:
                execute(todo, where, self.cache, finished, board.look)
            finally:
                where.close()
        return failed


def _engine(name: str, slots: int) -> Machines:
    if name == "local":
        return ThisMachine(slots)
    from pfeddsh.compare.ray_engine import RayMachines

    return RayMachines(slots)


def _lines(task: ProcessTask) -> list[str]:
    return task.job.log.read_text(errors="replace").splitlines() if task.job.log.exists() else []
