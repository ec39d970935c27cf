"""How a run tells a person where it is: a live line in a terminal, plain lines elsewhere."""

import time
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn
from rich.table import Table
from rich.text import Text

from pfeddsh.pace import Pace
from pfeddsh.results.metrics import LOST, completed
from pfeddsh.schedule import Schedule

LOG = "events.jsonl"
SHOWN = 5  # refusals that are told one by one
PLAIN_INTERVAL = 10.0  # seconds between lines when the output is not a terminal


class Remaining(ProgressColumn):
    """Time left, from the work done since this process started."""

    def render(self, task: Task) -> Text:
        return Text(task.fields["eta"], style="cyan")


class ProgressLine:
    """Rounds, loss, samples per second and the time left."""

    def __init__(self, plan: Schedule, label: str, console: Console) -> None:
        self._plan, self._label, self._console = plan, label, console
        self._pace = Pace(plan)
        self._samples, self._refused = 0, 0
        self._began = self._spoke = time.monotonic()
        self._last: float | None = None  # of the events that tell how long something took
        self._loss = 0.0
        self._progress = Progress(
            TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[text]}"), Remaining(),
            console=console, transient=True, disable=not console.is_terminal,
        )  # fmt: skip
        self._bar = self._progress.add_task(label, total=1.0, text="", eta="")

    def __enter__(self) -> "ProgressLine":
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def event(self, kind: str, facts: dict[str, Any]) -> None:
        if kind == "round":
            self._round(facts)
        elif kind == "step":
            self._step(facts)
        elif kind == "controls":
            self._controls(facts)
        elif kind == "refused":
            self._refused += 1
            if self._refused <= SHOWN:
                text = f"{self._label}: [yellow]refused[/] client {facts['client']}: {escape(facts['reason'])}"
                rest = f" (further ones are in {LOG})" if self._refused == SHOWN else ""
                self._console.print(text + rest, soft_wrap=True)

    def _step(self, facts: dict[str, Any]) -> None:
        step = facts["step"]
        self._pace.step(step, self._since(), facts["replay_seconds"])
        ri = f", existing clients {facts['ri']:+.2f}" if facts["ri"] is not None else ""
        replay = f", replay {facts['replay_seconds']:.0f} s" if facts["replay_seconds"] >= 0.5 else ""
        accuracy = "-" if facts["accuracy"] is None else f"{facts['accuracy']:.1f} %"
        self._console.print(f"{self._label}: step {step} done, newcomers {accuracy}{ri}{replay}")

    def _controls(self, facts: dict[str, Any]) -> None:
        """What is left of every client's training alone; after the last step it is all that is left."""
        if self._last is None:  # the run begins here: what was before, it needs once
            self._since()
        self._pace.controls = facts["visits"]
        if facts["over"]:
            self._show("every client alone, for PA", self._pace.left(len(self._plan.steps) + 1, 0))

    def _round(self, facts: dict[str, Any]) -> None:
        step, number = facts["step"], facts["round"] + 1
        self._pace.round(step, facts["round"], self._since(), facts["seconds"] + facts["server_seconds"])
        self._samples += facts["samples"]
        self._loss = facts["loss"] if facts["loss"] is not None else self._loss
        elapsed = max(time.monotonic() - self._began, 1e-9)
        text = (
            f"step {step}/{len(self._plan.steps)} round {number}/{self._plan.rounds(step)}"
            f"  loss {self._loss:.3f}  {self._samples / elapsed:,.0f} samples/s"
        )
        self._show(text, self._pace.left(step, number))

    def _since(self) -> float:
        """Seconds since the event before this one."""
        before, now = self._last, time.monotonic()
        self._last = now
        return 0.0 if before is None else now - before

    def _show(self, text: str, left: float) -> None:
        now = time.monotonic()
        elapsed = max(now - self._began, 1e-9)
        eta = f"{_clock(left)} left"
        self._progress.update(self._bar, completed=elapsed / (elapsed + left), text=text, eta=eta)
        if not self._console.is_terminal and now - self._spoke > PLAIN_INTERVAL:
            self._spoke = now
            self._console.print(f"{self._label}: {text}  {eta}", soft_wrap=True)


def _clock(seconds: float) -> str:
    minutes, seconds = divmod(int(seconds), 60)
    return f"{minutes}:{seconds:02d}"


def table(results: dict[str, Any]) -> Table:
    """Every step of a finished run, as the command line prints it at the end; its last word is everyone's accuracy."""
    results = completed(results)
    zero_shot = results.get("pa_zero_shot") or []
    shown = any(value is not None for value in zero_shot)
    sample = results.get("evaluated") or {}
    everyone = sample.get("acc_everyone") or [None] * results["steps"]
    view = Table(
        title=f"{results['method']} on {results['dataset']}, {results['schedule']}, seed {results['seed']}",
        caption=f"accuracies in %, alone is local-only, all is everyone so far; PA{', zero-shot PA' * shown} and RI in "
        f"points; lost: existing clients more than {LOST:g} points worse"
        + (f"; existing: a sample of {sample['sample']}, \u00b1 the standard error" if sample else ""),
        box=SIMPLE_HEAD,
        collapse_padding=True,
    )
    names = ["step", "new", "accuracy", "alone", "PA", *["zero\nshot"] * shown, "existing", "RI", "lost", "all"]
    for name in names:
        view.add_column(name, justify="right", no_wrap=True)
    for t in range(results["steps"]):
        row, batch = results["acc"][t], results["batch"]
        new = [k for k, joined in enumerate(batch) if joined == t + 1 and row[k] is not None]
        old = [k for k, joined in enumerate(batch) if joined <= t and row[k] is not None]
        previous, lost = results["acc"][t - 1] if t else row, results["lost_share"][t]
        view.add_row(
            str(t + 1),
            str(len(new)),
            _mean([row[k] for k in new]),
            _mean([results["local"][k] for k in new]),
            _signed(results["pa"][t]),
            *[_signed(value) for value in zero_shot[t : t + 1] if shown],
            f"{_mean([previous[k] for k in old if previous[k] is not None])} \u2192 {_mean([row[k] for k in old])}"
            if old
            else "",
            _signed(results["ri"][t]) + _error(sample.get("ri_error"), t),
            "" if lost is None else f"{lost:.0f} %",
            _mean([everyone[t]] if everyone[t] is not None else [row[k] for k in new + old])
            + _error(sample.get("acc_everyone_error"), t),
        )
    return view


def _mean(values: list[float]) -> str:
    return f"{sum(values) / len(values):.1f}" if values else "-"


def _error(errors: list[float | None] | None, step: int) -> str:
    """How far off a sample may be, where there is one."""
    error = errors[step] if errors else None
    return f" \u00b1 {error:.2f}" if error else ""


def _signed(value: float | None) -> str:
    return "" if value is None else f"{value:+.2f}"
