"""Where files are looked for: the given folder, PFEDDSH_DATA, the user's cache; then, if possible, the hub."""

import os
import re
from pathlib import Path

from pfeddsh.data import store
from pfeddsh.errors import UserError

TrainTest = tuple[tuple[Path, ...], tuple[Path, ...]]


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


def find_files(
    name: str, folder: str, files: tuple[str, ...], data_dir: Path | None, advice: str, elsewhere: Path | None = None
) -> tuple[Path, ...]:
    """The files of a dataset that is not on the hub: all of them in one folder, or an error that says what to do."""
    searched = roots(data_dir) + ([elsewhere] if elsewhere else [])
    for root in searched:
        paths = tuple(root / folder / file for file in files)
        if all(path.is_file() for path in paths):
            return paths
    raise _missing(name, [root / folder for root in searched], ", ".join(files), advice)


def find_shards(name: str, repo: str, folder: str, splits: tuple[str, str], data_dir: Path | None) -> TrainTest:
    """The parquet files of both splits from the first folder that has them whole; downloaded if none has."""
    places = [root / repo / folder for root in roots(data_dir)]
    if found := _first_whole(places, splits):
        return found
    trouble = _download(repo, folder)
    if not trouble and (found := _first_whole(places, splits)):
        return found
    expected = " and ".join(f"{split}-*.parquet" for split in splits)
    raise _missing(name, places, f"{expected}, all shards", trouble or f"the hub has no {folder} in {repo}")


def _first_whole(places: list[Path], splits: tuple[str, str]) -> TrainTest | None:
    for place in places:
        train, test = (_shards(place, split) for split in splits)
        if train and test:
            return train, test
    return None


def _shards(place: Path, split: str) -> tuple[Path, ...]:
    """All shards of a split, or none: names end in -<number>-of-<count>, and every number must be there once."""
    files = tuple(sorted(place.glob(f"{split}-*.parquet")))
    numbered = [re.search(r"-(\d+)-of-(\d+)", file.name) for file in files]
    found = sorted((int(match[1]), int(match[2])) for match in numbered if match)
    whole = not found or found == [(number, len(files)) for number in range(len(files))]
    return files if whole else ()


def _download(repo: str, folder: str) -> str:
    """Fetch a dataset into the cache with the hub's own client; the reason in words if that cannot be done."""
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        return "install huggingface_hub to have it downloaded, or put the files into one of these folders"
    try:
        snapshot_download(
            repo, repo_type="dataset", allow_patterns=[f"{folder}/*.parquet"], local_dir=downloads() / repo
        )
    except Exception as error:  # the hub's client has many: network, proxy, disk, access
        reason = f"{type(error).__name__}: {str(error).splitlines()[0][:200] if str(error) else 'no details'}"
        return f"the download of {repo} failed ({reason}); put the files into one of these folders"
    return ""


def _missing(name: str, searched: list[Path], expected: str, advice: str) -> UserError:
    places = " or ".join(str(place) for place in dict.fromkeys(searched))
    return UserError(f"dataset '{name}' was not found: expected {expected} in {places}; {advice}")
