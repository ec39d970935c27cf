"""The front door. Commands of comparing, reporting and live federations are registered from their own packages."""

import shlex
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

import pfeddsh
from pfeddsh.compare import cli as compare_cli
from pfeddsh.config import build
from pfeddsh.errors import UserError
from pfeddsh.live import cli as live_cli
from pfeddsh.live import edge_cli, leave_cli, operate_cli
from pfeddsh.plugins import file_name
from pfeddsh.report import cli as report_cli
from pfeddsh.schedule import parse_rounds
from pfeddsh.storage.files import writable
from pfeddsh.values import override, read

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)
UsageError: Any = typer.BadParameter.__base__  # of whichever click typer works with
data_app = typer.Typer(no_args_is_help=True, help="Datasets: what there is, and who would own what.")
app.add_typer(data_app, name="data")
console = Console()


def _method_names() -> list[str]:
    from pfeddsh.methods.registry import METHODS

    return list(METHODS)


def _dataset_names() -> list[str]:
    from pfeddsh.data.datasets import names

    return names()


def _model_names() -> list[str]:
    from pfeddsh.models import registry

    return registry.names()


ConfigFile = Annotated[Path | None, typer.Argument(help="a TOML file, such as the config.toml of another run")]
Dataset = Annotated[
    str | None,
    typer.Option(help="digits, cifar10, ..., a folder of images, .npz or .parquet", autocompletion=_dataset_names),
]
Partition = Annotated[str | None, typer.Option(help="who owns what: dirichlet, iid, classes=k, or natural")]
SkipUnreadable = Annotated[
    bool | None, typer.Option("--skip-unreadable", help="go on without images that cannot be read")
]
Schedule = Annotated[str | None, typer.Option(help="batch sizes, e.g. 80+20, 80+4x5, 80+10x2")]
Rounds = Annotated[
    str | None, typer.Option(help="of every step, or of the first and of each later one: 60, or 200,100")
]
Seed = Annotated[int | None, typer.Option(help="everything random follows from it")]
DataDir = Annotated[Path | None, typer.Option(help="where datasets lie; else PFEDDSH_DATA, else the user's cache")]
Assignments = Annotated[
    list[str] | None, typer.Option("--set", help="any other key: alpha=0.3, rounds_first=50, options.NAME=VALUE")
]
Track = Annotated[
    list[str] | None, typer.Option(help="also show the run in tensorboard or mlflow; give it twice for both")
]


def _config(file: Path | None, assignments: list[str] | None, **given: Any) -> Any:
    values = read(file) if file else {}
    values |= {key: value for key, value in given.items() if value is not None}
    return build(override(values, assignments or []), str(file or "command line"))


def _version(wanted: bool) -> None:
    if wanted:
        console.print(f"pfeddsh {pfeddsh.__version__}", highlight=False)
        raise typer.Exit


@app.callback()
def front(
    version: Annotated[
        bool, typer.Option("--version", help="print the version", is_eager=True, callback=_version)
    ] = False,
) -> None:
    """Onboard new clients into a personalised federation without retraining or hurting those already served."""


@app.command()
def run(
    file: ConfigFile = None,
    dataset: Dataset = None,
    method: Annotated[
        str | None,
        typer.Option(help="see `pfeddsh methods`; your own: package.module:Class", autocompletion=_method_names),
    ] = None,
    schedule: Schedule = None,
    seed: Seed = None,
    partition: Partition = None,
    rounds: Rounds = None,
    model: Annotated[
        str | None,
        typer.Option(help="see `pfeddsh models`, or your own package.module:factory", autocompletion=_model_names),
    ] = None,
    init: Annotated[Path | None, typer.Option(help="begin with the weights of this safetensors file")] = None,
    data_dir: DataDir = None,
    skip_unreadable: SkipUnreadable = None,
    out: Annotated[Path | None, typer.Option(help="run directory; default runs/METHOD-DATASET-...")] = None,
    track: Track = None,
    set_: Assignments = None,
) -> None:
    """Run one method through one onboarding schedule, print PA and RI per step, and leave a page to look at.

    Without arguments: pFedDSH on the embedded digits, 30 clients and then twice 5 more, in about a minute.

    Example: `pfeddsh run --dataset cifar10 --schedule 80+4x5 --method fedper --seed 0 --out runs/fedper`
    """
    from pfeddsh.data.show import notes
    from pfeddsh.federation.run import run as start
    from pfeddsh.federation.workbench import open_data, settled
    from pfeddsh.progress import ProgressLine
    from pfeddsh.tracking import tracking

    config = _config(
        file, set_, dataset=dataset, method=method, schedule=schedule, seed=seed, partition=partition, model=model,
        init=init, data_dir=data_dir, skip_unreadable=skip_unreadable, **parse_rounds(rounds),
    )  # fmt: skip
    if out:
        writable(out)
    config = settled(config)
    console.print(notes(open_data(config)), highlight=False, markup=False, soft_wrap=True)
    stem = f"{file_name(config.method)}-{Path(config.dataset).stem}-{config.schedule}-seed{config.seed}"
    out = out or Path("runs") / f"{stem}-{time.strftime('%Y%m%d-%H%M%S')}"
    with (
        _resumable(out),
        tracking(track or [], config, out) as tracker,
        ProgressLine(config.plan(), config.method, console) as line,
    ):
        results = start(config, out, [line, tracker])
    _finish(results, out)


@app.command()
def resume(folder: Annotated[Path, typer.Argument(help="the run directory")], track: Track = None) -> None:
    """Continue a run that was interrupted. The results are the same bits as without the interruption.

    Trackers go on by themselves; `--track` adds one, also to a finished run.
    """
    from pfeddsh.federation.run import resume as again
    from pfeddsh.progress import ProgressLine
    from pfeddsh.tracking import tracking

    if not (folder / "config.toml").exists():
        raise UserError(f"{folder} holds no run: there is no config.toml in it")
    config = build(read(folder / "config.toml"), str(folder / "config.toml"))
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
        Console(stderr=True).print(f"interrupted; `{go_on}` continues from here", soft_wrap=True)
        raise typer.Exit(130) from None


def _finish(results: dict[str, Any], out: Path) -> None:
    from pfeddsh.progress import table
    from pfeddsh.report.build import beside
    from pfeddsh.results.remarks import remarks
    from pfeddsh.storage.checkpoint import Checkpoints

    if (out / "state").exists():
        Checkpoints(out / "state").thin()
    console.print(table(results))
    for remark in remarks(results):
        console.print(f"[yellow]note:[/] {escape(remark)}", soft_wrap=True, highlight=False)
    console.print(f"results in {out}", soft_wrap=True)
    console.print(f"to look at: {beside(out)}", soft_wrap=True)


@app.command()
def methods() -> None:
    """List the methods and their settings."""
    from pfeddsh.methods.registry import METHODS, find, offered

    view = Table(Column("method", no_wrap=True), "what it is", "settings (--set options.NAME=VALUE)")
    for name in [*METHODS, *offered()]:
        try:
            entry = find(name)
        except UserError as error:  # of an installed package that is broken
            view.add_row(name, escape(str(error)), "")
            continue
        settings = entry.preset or entry.options({})
        view.add_row(name, entry.summary, "\n".join(f"{k} = {v}" for k, v in settings.items() if v is not None))
    console.print(view)


@app.command()
def models(
    classes: Annotated[int, typer.Option(help="the number of classes")] = 10,
    shape: Annotated[
        tuple[int, int, int] | None,
        typer.Option(help="channels, height and width of images; else those of the default"),
    ] = None,
) -> None:
    """List the networks known by name, with their size; your own is given as package.module:factory."""
    from pfeddsh.models import registry

    shape = shape or registry.fixed_shape(registry.DEFAULT)
    view = Table(Column("model", no_wrap=True), "weights", "what it is")
    for name in registry.names():
        summary = (registry.find(name).__doc__ or "").strip().partition("\n")[0]
        try:
            size = f"{registry.create(name, classes, shape).size:,}"
        except UserError:
            size = "not for this shape"
        view.add_row(name, size, summary)
    console.print(view)


@data_app.command("list")
def data_list() -> None:
    """List the datasets known by name."""
    from pfeddsh.data.datasets import names

    for name in names():
        console.print(name)


@data_app.command("show")
def data_show(
    dataset: Annotated[str, typer.Argument(help="a dataset name or path")] = "digits",
    schedule: Schedule = None,
    seed: Seed = None,
    partition: Partition = None,
    data_dir: DataDir = None,
    skip_unreadable: SkipUnreadable = None,
    draw: Annotated[Path | None, typer.Option(help="also draw it to this PNG or SVG file")] = None,
    set_: Assignments = None,
) -> None:
    """Show who would own what: images and classes of every client under a partition."""
    from pfeddsh.data import show
    from pfeddsh.federation.workbench import divide, open_data, settled

    if partition == "natural" and schedule is None:
        schedule = "all"  # who they are is asked, not when they join
    config = _config(
        None, set_, dataset=dataset, schedule=schedule, seed=seed, partition=partition, data_dir=data_dir,
        skip_unreadable=skip_unreadable,
    )  # fmt: skip
    config = settled(config)
    data = open_data(config)
    console.print(show.notes(data), highlight=False, markup=False, soft_wrap=True)
    parts = divide(config, data)
    console.print(show.show(data, parts))
    if draw:
        show.draw(parts, data, draw)
        console.print(f"drawn to {draw}", soft_wrap=True)


for part in (compare_cli, report_cli, live_cli, edge_cli, leave_cli, operate_cli):
    part.register(app)


def main() -> None:
    """Run the command line; a user's mistake ends with its explanation, not with a traceback."""
    warnings.showwarning = lambda message, *_: console.print(
        f"[yellow]warning:[/] {escape(str(message))}", soft_wrap=True
    )
    try:
        _readable(sys.argv[1:])
        sys.exit(app(standalone_mode=False))
    except UserError as error:
        _refuse(str(error))
    except UsageError as error:
        _refuse_usage(error)
    except typer.Abort:
        sys.exit(130)
    except OSError as error:  # of the surroundings: a folder without permission, a full disk
        where = f"{error.filename}: " if error.filename else ""
        _refuse(f"{where}{error.strerror or error}")
    except UnicodeEncodeError as error:
        _refuse(f"a name that is not valid UTF-8: {ascii(error.object)[:200]}; rename the file or folder")


def _readable(arguments: list[str]) -> None:
    """What is not UTF-8 could neither be shown nor written into a configuration."""
    for argument in arguments:
        try:
            argument.encode()
        except UnicodeEncodeError:
            raise UserError(f"{argument!a} is not valid UTF-8; rename the file or folder") from None


def _refuse_usage(error: Any) -> NoReturn:
    """An option or command that does not exist, or a value that is none: one line, and where to look."""
    if type(error).__name__ == "NoArgsIsHelpError":  # `pfeddsh` alone: the help is what it wants
        error.show()
        sys.exit(2)
    where = error.ctx.command_path if error.ctx is not None else "pfeddsh"
    _refuse(f"{error.format_message().strip().rstrip('.')}; see `{where} --help`")


def _refuse(text: str) -> NoReturn:
    Console(stderr=True).print("[red]error:[/]", escape(text), soft_wrap=True, highlight=False)
    sys.exit(2)
