"""Where files are looked for: the given folder, PFEDDSH_DATA, the user's cache; then they are downloaded."""

import os
from pathlib import Path

from pfeddsh.data import store
from pfeddsh.data.download import Files, Groups, Origin, download
from pfeddsh.errors import UserError


def roots(data_dir: Path | None) -> list[Path]:
    """Folders to search, in order: the given one (else PFEDDSH_DATA), which must exist, and the user's cache."""
    given = data_dir or os.environ.get("PFEDDSH_DATA")
    if not given:
        return [downloads()]
    folder = Path(given).expanduser().resolve()
    if not folder.is_dir():
        raise UserError(f"{'data folder' if data_dir else 'PFEDDSH_DATA'}: {folder} is not a folder")
    return [folder, downloads()]


def downloads() -> Path:
    return store.cache_root() / "data"


def present(origin: Origin, data_dir: Path | None) -> Groups | None:
    """The files of a dataset in the first folder that has all of them."""
    return next((found for root in _searched(origin, data_dir) if (found := origin.find(root))), None)


def find(name: str, origin: Origin, data_dir: Path | None) -> Groups:
    """The files of a dataset, downloaded into the user's cache if no folder has them."""
    if found := present(origin, data_dir):
        return found
    try:
        download(name, origin, downloads())
    except UserError as error:
        trouble = str(error)
    else:
        if found := origin.find(downloads()):
            return found
        trouble = "what was downloaded is not all of it"
    places = " or ".join(str(root / origin.place) for root in dict.fromkeys(_searched(origin, data_dir)))
    raise UserError(f"dataset '{name}' was not found: expected {origin.expected} in {places}; {trouble}")


def _searched(origin: Origin, data_dir: Path | None) -> list[Path]:
    installed = origin.installed if isinstance(origin, Files) else None
    return roots(data_dir) + ([installed] if installed else [])
