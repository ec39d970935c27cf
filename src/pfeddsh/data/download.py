"""Where datasets come from, and how they are fetched: whole and checked, or not at all.

Files are collected in a folder of their own and move to where they belong once every checksum is right, so an
interrupted download leaves nothing that looks like a dataset, and the next one goes on from there.
"""

import hashlib
import logging
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from pfeddsh.errors import UserError

SHARD = re.compile(r"[\w.-]+\.parquet")
Groups = tuple[tuple[Path, ...], ...]


@dataclass(frozen=True)
class Shards:
    """A dataset on the Hugging Face hub: `<repo>/<folder>/<split>-*.parquet`. The hub tells the checksums."""

    repo: str
    folder: str
    splits: tuple[str, ...]

    @property
    def place(self) -> str:
        return f"{self.repo}/{self.folder}"

    @property
    def home(self) -> str:
        return f"hub: {self.repo}"

    @property
    def expected(self) -> str:
        return " and ".join(f"{split}-*.parquet" for split in self.splits) + ", all shards"

    def find(self, root: Path) -> Groups | None:
        """The files of every split, if all are there."""
        found = tuple(_whole(root / self.place, split) for split in self.splits)
        return found if all(found) else None

    def fetch(self, into: Path) -> Iterator[Path]:
        from huggingface_hub import HfApi, RepoFile

        logging.getLogger("huggingface_hub").setLevel("ERROR")  # it tries again by itself; what is final is said below
        hub = HfApi()
        listed = [
            entry for entry in hub.list_repo_tree(self.repo, self.folder, repo_type="dataset")
            if isinstance(entry, RepoFile)
            and entry.path.rpartition("/")[0] == self.folder and SHARD.fullmatch(entry.path.rpartition("/")[2])
        ]  # fmt: skip
        if not listed:
            raise UserError(f"the hub has no {self.folder}/*.parquet in {self.repo}")
        for entry in listed:
            path = Path(hub.hf_hub_download(self.repo, entry.path, repo_type="dataset", local_dir=into))
            if entry.lfs is not None and (found := _sha256(path)) != entry.lfs.sha256:
                path.unlink()
                raise ValueError(f"{entry.path}: sha256 {found[:12]}... is not the hub's {entry.lfs.sha256[:12]}...")
            yield path


@dataclass(frozen=True)
class Files:
    """A dataset of single files that their authors publish, with their checksums; perhaps also installed elsewhere."""

    place: str
    url: str
    md5: dict[str, str]
    installed: Path | None = None

    @property
    def home(self) -> str:
        return urlsplit(self.url).hostname or self.url

    @property
    def expected(self) -> str:
        return ", ".join(self.md5)

    def find(self, root: Path) -> Groups | None:
        paths = tuple(root / self.place / name for name in self.md5)
        return (paths,) if all(path.is_file() for path in paths) else None

    def fetch(self, into: Path) -> Iterator[Path]:
        import pooch

        pooch.get_logger().setLevel("ERROR")
        for name, md5 in self.md5.items():
            yield Path(pooch.retrieve(self.url.format(name), f"md5:{md5}", name, into, progressbar=True))


Origin = Shards | Files


def download(name: str, origin: Origin, root: Path, again: str = "") -> list[Path]:
    """Fetch a dataset into the folder `root`, with progress; what was already fetched is not fetched again.

    `again` is the command that goes on, for the user to read. One that fetched nothing leaves nothing.
    """
    collected = root / ".downloads" / name
    place = root / origin.place
    again = again or f"pfeddsh data download {name}"
    made = [folder for folder in (collected, *collected.parents) if not folder.exists()]
    try:
        collected.mkdir(parents=True, exist_ok=True)
        files = list(origin.fetch(collected))
        place.mkdir(parents=True, exist_ok=True)
        for file in files:
            os.replace(file, place / file.name)
        shutil.rmtree(collected)
    except ModuleNotFoundError:
        raise UserError(f"downloading {name} needs an extra: pip install 'pfeddsh[hub]'") from None
    except UserError:
        raise
    except Exception as error:  # of the clients' many: network, proxy, disk, access, a checksum
        reason = f"{type(error).__name__}: {(str(error).strip() or 'no details').splitlines()[0][:200]}"
        raise UserError(
            f"the download of {name} failed ({reason}); `{again}` goes on, or put {origin.expected} into {place}"
        ) from None
    finally:
        _tidy(collected, made)
    return [place / file.name for file in files]


def _tidy(collected: Path, made: list[Path]) -> None:
    """Take away what was made in vain: all but bytes of the dataset, from which another attempt goes on."""
    files = (file for file in collected.rglob("*") if file.is_file() and file.stat().st_size)
    if not any(".cache" not in file.relative_to(collected).parts or file.suffix == ".incomplete" for file in files):
        shutil.rmtree(collected, ignore_errors=True)
        with suppress(OSError):  # the first that holds something ends it
            for folder in [collected.parent, *made[2:]]:
                folder.rmdir()


def _whole(place: Path, split: str) -> tuple[Path, ...]:
    """All shards of a split, or none: names end in -<number>-of-<count>, and every number must be there once."""
    files = tuple(sorted(place.glob(f"{split}-*.parquet")))
    numbered = [re.search(r"-(\d+)-of-(\d+)", file.name) for file in files]
    found = sorted((int(match[1]), int(match[2])) for match in numbered if match)
    whole = not found or found == [(number, len(files)) for number in range(len(files))]
    return files if whole else ()


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
