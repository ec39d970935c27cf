"""`pfeddsh run` and `pfeddsh resume`."""

import shlex
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from pfeddsh.commands.options import (
    Assignments,
    ConfigFile,
    DataDir,
    Dataset,
    Model,
    Partition,
    Rounds,
    Schedule,
    Seed,
    SkipUnreadable,
    Track,
    configure,
    method_names,
)
from pfeddsh.errors import UserError
from pfeddsh.plugins import file_name
from pfeddsh.schedule import parse_rounds
from pfeddsh.storage.files import writable
from pfeddsh.values import read

console = Console(emoji=False)


def run(
    file: ConfigFile = None,
    dataset: Dataset = None,
    method: Annotated[
        str | None,
        typer.Option(help="see `pfeddsh methods`, or your own package.module:Class", autocompletion=method_names),
    ] = None,
    schedule: Schedule = None,
    seed: Seed = None,
    partition: Partition = None,
    rounds: Rounds = None,
    model: Model = None,
    init: Annotated[Path | None, typer.Option(help="start from the weights in this safetensors file")] = None,
    data_dir: DataDir = None,
    skip_unreadable: SkipUnreadable = None,
    out: Annotated[Path | None, typer.Option(help="run directory; default runs/METHOD-DATASET-...")] = None,
    track: Track = None,
    set_: Assignments = None,
) -> None:
    """Run one method through one onboarding schedule, print PA and RI per step, and write a report page.

    Without arguments: pFedDSH on the embedded digits, 30 clients and then two batches of 5, in about a minute.

    Example: `pfeddsh run --dataset cifar10 --schedule 80+4x5 --method fedper --seed 0 --out runs/fedper`
    """
    from pfeddsh.data.show import notes
    from pfeddsh.federation.allocation import keep_freed_memory
    from pfeddsh.federation.run import run as start
    from pfeddsh.federation.workbench import open_data, settled
    from pfeddsh.progress import ProgressLine
    from pfeddsh.tracking import tracking

    config = configure(
        file, set_, dataset=dataset, method=method, schedule=schedule, seed=seed, partition=partition, model=model,
        init=init, data_dir=data_dir, skip_unreadable=skip_unreadable, **parse_rounds(rounds),
    )  # fmt: skip
    if out:
        writable(out)
    config = settled(config)
    console.print(notes(open_data(config)), highlight=False, markup=False, soft_wrap=True)
    stem = f"{file_name(config.method)}-{Path(config.dataset).stem}-{config.schedule}-seed{config.seed}"
    out = out or Path("runs") / f"{stem}-{time.strftime('%Y%m%d-%H%M%S')}"
    keep_freed_memory()
    with (
        _resumable(out),
        tracking(track or [], config, out) as tracker,
        ProgressLine(config.plan(), config.method, console) as line,
    ):
        results = start(config, out, [line, tracker])
    _finish(results, out)


def resume(folder: Annotated[Path, typer.Argument(help="the run directory")], track: Track = None) -> None:
    """Continue an interrupted run. The results are bit-identical to those of an uninterrupted run.

    Existing trackers continue. `--track` adds one, even to a finished run.
    """
    from pfeddsh.configure import build
    from pfeddsh.federation.allocation import keep_freed_memory
    from pfeddsh.federation.run import resume as again
    from pfeddsh.progress import ProgressLine
    from pfeddsh.tracking import tracking

    if not (folder / "config.toml").exists():
        raise UserError(f"{folder} holds no run: there is no config.toml in it")
    config = build(read(folder / "config.toml"), str(folder / "config.toml"))
    keep_freed_memory()
    with (
        _resumable(folder),
        tracking(track or [], config, folder) as tracker,
        ProgressLine(config.plan(), config.method, console) as line,
    ):
        results = again(folder, [line, tracker])
    _finish(results, folder)


@contextmanager
def _resumable(out: Path) -> Iterator[None]:
    """Ctrl-C ends with how to go on; typer would swallow it on the way to `main`."""
    try:
        yield
    except KeyboardInterrupt:
        go_on = shlex.join(["pfeddsh", "resume", str(out)])
        Console(stderr=True, emoji=False).print(f"interrupted; `{go_on}` continues from here", soft_wrap=True)
        raise typer.Exit(130) from None


def _finish(results: dict[str, Any], out: Path) -> None:
    from pfeddsh.progress import table
    from pfeddsh.report.build import beside
    from pfeddsh.results.remarks import remarks

    console.print(table(results))
    for remark in remarks(results):
        console.print(f"[yellow]note:[/] {escape(remark)}", soft_wrap=True, highlight=False)
    console.print(f"results in {out}", soft_wrap=True)
    console.print(f"report page: {beside(out)}", soft_wrap=True)


def register(app: typer.Typer) -> None:
    """Add the commands to the front door."""
    app.command()(run)
    app.command()(resume)
