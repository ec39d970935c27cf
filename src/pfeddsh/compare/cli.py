"""`pfeddsh compare` and `pfeddsh cache`."""

import os
import shlex
import time
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from pfeddsh.errors import UserError
from pfeddsh.schedule import parse_rounds
from pfeddsh.storage.files import writable
from pfeddsh.values import override, read

console = Console(emoji=False)
LIMIT = "20GB"

Many = Annotated[str | None, typer.Option(help="one, or several separated by commas")]
CacheDir = Annotated[
    Path | None, typer.Option("--cache", help="cache folder instead of PFEDDSH_CACHE; with Ray, a shared folder")
]


def compare(
    file: Annotated[Path | None, typer.Argument(help="a plan, such as examples/table1.toml")] = None,
    dataset: Many = None,
    methods: Many = None,
    schedules: Many = None,
    seeds: Many = None,
    rounds: Annotated[
        str | None, typer.Option(help="rounds of every step, or of the first and each later step: 200,100")
    ] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", help="any other key, for all runs: alpha=0.3")] = None,
    out: Annotated[Path | None, typer.Option(help="folder for all runs; default runs/PLAN")] = None,
    jobs: Annotated[int, typer.Option(min=0, help="tasks in parallel; 0 means one per core")] = 0,
    engine: Annotated[Literal["local", "ray"], typer.Option(help="ray: RAY_ADDRESS, or a local instance")] = "local",
    cache: CacheDir = None,
    cache_limit: Annotated[str, typer.Option(help="size of shared states; least recently used are removed")] = LIMIT,
    keep_states: Annotated[bool, typer.Option("--keep-states", help="keep state/ of finished runs")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="only print the plan")] = False,
) -> None:
    """Compare methods, schedules, datasets and seeds; shared work is computed once.

    Runs share every step they have in common. After an interruption, give the same command again to continue.

    Example: `pfeddsh compare --methods fedavg,fedper,pfeddsh --schedules 30+10,30+2x5 --seeds 0,1 --out runs/first`

    Example: `pfeddsh compare examples/table1.toml --out runs/table1 --dry-run`
    """
    from pfeddsh.compare.cache import parse_size
    from pfeddsh.compare.comparison import Comparison
    from pfeddsh.compare.plan import make

    given: dict[str, Any] = {"datasets": _several(dataset), "methods": _several(methods)}
    given |= {"schedules": _several(schedules), "seeds": _numbers(seeds)}
    flags = {key: value for key, value in given.items() if value is not None}
    keys = [*(f"{key}={value}" for key, value in parse_rounds(rounds).items()), *(set_ or [])]
    nothing = not (file or flags or keys)
    if nothing and out and not (out / "compare.toml").exists():
        raise UserError(f"{out} holds no comparison to continue; for a new one, give a plan, or --methods and the like")
    out = out or Path("runs") / (file.stem if file else "compare")
    again = nothing and (out / "compare.toml").exists()
    source = out / "compare.toml" if again else file
    values = (read(source) if source else {}) | flags
    if keys:
        if not isinstance(values.get("set", {}), dict):
            raise UserError(f"{source}: set must be a table of keys")
        values["set"] = override(values.get("set", {}), keys)
    writable(out)
    limit = parse_size(cache_limit)
    plan = make(values, str(source or "command line"))
    go_on = ["pfeddsh", "compare", "--out", str(out)]
    if cache:
        writable(cache)
        os.environ["PFEDDSH_CACHE"] = str(cache.absolute())
        go_on += ["--cache", str(cache)]
    go_on += ["--engine", engine] if engine != "local" else []
    slots = jobs or os.cpu_count() or 1
    comparison = Comparison(plan, out.absolute(), slots, limit, keep_states, shlex.join(go_on))
    if dry_run:
        comparison.forecast(console)
    elif not comparison.run(engine, console):
        raise typer.Exit(1)


def demo(
    out: Annotated[Path, typer.Option(help="folder for the runs and the report page")] = Path("runs/demo"),
) -> None:
    """Show onboarding on the embedded digits: five methods, 20 clients and then four batches of 3, in about a minute.

    An interrupted demo continues; a finished one is shown again.
    """
    from pfeddsh.compare.demo import demonstrate

    writable(out)
    demonstrate(out, console)


def _several(text: str | None) -> list[str] | None:
    return None if text is None else [part.strip() for part in text.split(",") if part.strip()]


def _numbers(text: str | None) -> list[int] | None:
    try:
        return None if text is None else [int(part) for part in text.split(",")]
    except ValueError:
        raise UserError(f"--seeds {text}: write numbers with commas, such as 0,1,2") from None


def list_cache(context: typer.Context, cache: CacheDir = None) -> None:
    """List the step states that comparisons share, the least recently used first."""
    from pfeddsh.compare.cache import open_cache

    _use(cache)
    if context.invoked_subcommand:
        return
    states = open_cache(0)
    view = Table("used", "MB", "computed by")
    for entry in states.entries():
        used = time.strftime("%Y-%m-%d %H:%M", time.localtime(entry.used))
        view.add_row(used, f"{entry.bytes / 1e6:.1f}", escape(entry.label))
    console.print(view)
    total = sum(entry.bytes for entry in states.entries())
    clean = shlex.join(["pfeddsh", "cache", "clean", *(["--cache", str(cache)] if cache else [])])
    console.print(f"{total / 1e9:.2f} GB in {states.folder}; `{clean}` empties it", soft_wrap=True)


def _use(cache: Path | None) -> None:
    """This cache instead of the user's; a mistyped one is not an empty one."""
    if cache and not cache.is_dir():
        raise UserError(f"--cache {cache}: no such folder")
    if cache:
        os.environ["PFEDDSH_CACHE"] = str(cache.absolute())


def clean_cache(
    to: Annotated[str, typer.Option(help="keep the most recently used states up to this size, e.g. 5GB")] = "0",
    cache: CacheDir = None,
) -> None:
    """Remove step states; comparisons recompute them if needed."""
    from pfeddsh.compare.cache import open_cache, parse_size

    _use(cache)
    gone = open_cache(0).shrink(parse_size(to))
    console.print(f"removed {len(gone)} states, {sum(entry.bytes for entry in gone) / 1e9:.2f} GB", highlight=False)


def register(app: typer.Typer) -> None:
    """Add the commands to the front door."""
    app.command()(demo)
    app.command()(compare)
    cache_app = typer.Typer(invoke_without_command=True, help="Step states that comparisons share: list, clean.")
    cache_app.callback()(list_cache)
    cache_app.command("clean")(clean_cache)
    app.add_typer(cache_app, name="cache")
