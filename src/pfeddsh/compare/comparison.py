"""A comparison from its plan to its table: the folder, the lock, the tasks, and what the user is told."""

import os
import shlex
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.markup import escape

from pfeddsh.compare import summary
from pfeddsh.compare.board import Board
from pfeddsh.compare.cache import open_cache
from pfeddsh.compare.plan import Plan, make
from pfeddsh.compare.scheduler import Machines, ThisMachine, execute
from pfeddsh.compare.tasks import ProcessTask, fingerprints, tasks
from pfeddsh.configure import build
from pfeddsh.errors import UserError
from pfeddsh.federation.workbench import settled
from pfeddsh.plugins import not_while_importing
from pfeddsh.report.build import beside
from pfeddsh.storage.files import locked, make_folder, writable, write_text
from pfeddsh.values import read

TAIL = 12  # lines of a failed run's log


@dataclass
class Comparison:
    """A plan in a folder: `compare.toml` and a run directory for every run."""

    plan: Plan
    out: Path
    slots: int
    limit: int  # of the cache, in bytes
    keep_states: bool = False
    command: str = "pfeddsh compare"  # that continues it

    def __post_init__(self) -> None:
        self.runs = self.plan.runs()
        self.cache = open_cache(self.limit)
        held = self.out / "compare.toml"
        if held.exists() and make(read(held), str(held)) != self.plan:
            go_on = f"choose another --out, or continue it with `{self.command}`"
            raise UserError(f"{self.out} holds another plan; {go_on}")
        for run in self.runs:
            begun = self.out / run.name / "config.toml"
            if begun.exists() and settled(build(read(begun), str(begun))) != run.config:
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
        began = time.monotonic()
        failed = self.compute(engine, console)
        console.print(summary.table(self.runs, self.out))
        text = summary.savings(self.runs, self.data, self.out, time.monotonic() - began, self.slots)
        console.print(text, highlight=False, soft_wrap=True)
        for task in failed:
            console.print(
                f"[red]failed:[/] {escape(task.name)}; the end of {escape(str(task.job.log))}:", soft_wrap=True
            )
            console.print(escape("\n".join(deque(_lines(task), TAIL))), highlight=False, soft_wrap=True)
        if failed:
            console.print(f"{len(failed)} failed; `{self.command}` tries again", soft_wrap=True)
        console.print(f"results in {self.out}", soft_wrap=True)
        if page := self.page():
            console.print(f"report page: {page}", soft_wrap=True)
        return not failed

    def compute(self, engine: str, console: Console, quiet: bool = False) -> list[ProcessTask]:
        """Do what is left of the plan; the tasks that failed. `quiet`: a bar in a terminal, and no lines of runs."""
        make_folder(self.out)
        with locked(self.out):
            write_text(self.out / "compare.toml", self.plan.toml())
            try:
                return self._execute(engine, console, quiet)
            except KeyboardInterrupt:
                text = f"interrupted; `{self.command}` continues from here"
                Console(stderr=True, emoji=False).print(text, soft_wrap=True)
                raise typer.Exit(130) from None

    def page(self) -> Path | None:
        """The page of all finished runs, if there are any."""
        return beside(self.out) if any(summary.results(self.out / run.name) for run in self.runs) else None

    def _execute(self, engine: str, console: Console, quiet: bool) -> list[ProcessTask]:
        """Run the tasks under the eyes of the user; those that failed."""
        todo, failed = self.tasks(), list[ProcessTask]()
        if not todo:
            return []
        with Board(todo, console, quiet) as board:

            def finished(task: ProcessTask, status: int) -> None:
                for line in _lines(task):
                    if (said := line.removeprefix("warning: ")) != line:
                        text = f"{escape(task.name)}: [yellow]warning:[/] {escape(said)}"
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


def compare(plan: Plan, out: Path, jobs: int, limit: int) -> dict[str, dict[str, Any]]:
    """A comparison from Python; the results of every run, by its name."""
    not_while_importing()
    writable(out)
    go_on = shlex.join(["pfeddsh", "compare", "--out", str(out)])
    comparison = Comparison(plan, out.absolute(), jobs or os.cpu_count() or 1, limit, command=go_on)
    try:
        failed = comparison.compute("local", Console(stderr=True, emoji=False), quiet=True)
    except typer.Exit:
        raise KeyboardInterrupt from None
    if failed:
        why = next(iter(deque(_lines(failed[0]), 1)), "it said nothing").removeprefix("error: ")
        others = f" (and {len(failed) - 1} more)" if len(failed) > 1 else ""
        raise UserError(f"{failed[0].name} failed{others}: {why}; its log is {failed[0].job.log}")
    comparison.page()
    found = {run.name: summary.results(comparison.out / run.name) for run in comparison.runs}
    return {name: results for name, results in found.items() if results is not None}


def _engine(name: str, slots: int) -> Machines:
    if name == "local":
        return ThisMachine(slots)
    from pfeddsh.compare.ray_engine import RayMachines

    return RayMachines(slots)


def _lines(task: ProcessTask) -> list[str]:
    return task.job.log.read_text(errors="replace").splitlines() if task.job.log.exists() else []
