"""Options that several commands share, and the configuration they make."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pfeddsh.values import override, read

if TYPE_CHECKING:
    from pfeddsh.config import Config


def method_names() -> list[str]:
    from pfeddsh.methods.registry import METHODS

    return list(METHODS)


def dataset_names() -> list[str]:
    from pfeddsh.data.known import names

    return names()


def model_names() -> list[str]:
    from pfeddsh.models import registry

    return registry.names()


ConfigFile = Annotated[Path | None, typer.Argument(help="a TOML file, such as the config.toml of another run")]
Dataset = Annotated[
    str | None,
    typer.Option(help="digits, cifar10, ..., or a folder of images, .npz or .parquet", autocompletion=dataset_names),
]
Partition = Annotated[
    str | None, typer.Option(help="how data are divided among clients: dirichlet, iid, classes=k, or natural")
]
Model = Annotated[
    str | None,
    typer.Option(help="see `pfeddsh models`, or your own package.module:factory", autocompletion=model_names),
]
SkipUnreadable = Annotated[
    bool | None, typer.Option("--skip-unreadable", help="continue without images that cannot be read")
]
Schedule = Annotated[str | None, typer.Option(help="batch sizes, e.g. 80+20, 80+4x5, 80+10x2")]
Rounds = Annotated[
    str | None, typer.Option(help="rounds of every step, or of the first and each later step: 60, or 200,100")
]
Seed = Annotated[int | None, typer.Option(help="seed of all random numbers")]
DataDir = Annotated[Path | None, typer.Option(help="folder of datasets; default: PFEDDSH_DATA or the user's cache")]
Assignments = Annotated[
    list[str] | None, typer.Option("--set", help="any other key: alpha=0.3, rounds_first=50, options.NAME=VALUE")
]
Track = Annotated[list[str] | None, typer.Option(help="also log the run to tensorboard or mlflow; repeat for both")]


def configure(file: Path | None, assignments: list[str] | None, **given: Any) -> "Config":
    """A configuration from a file, the options that were given, and assignments; the later ones win."""
    from pfeddsh.configure import build

    values = read(file) if file else {}
    values |= {key: value for key, value in given.items() if value is not None}
    return build(override(values, assignments or []), str(file or "command line"))
