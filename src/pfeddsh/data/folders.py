"""What lies in the user's folders: images by class, by client, and what is passed over."""

import os
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from pfeddsh.errors import UserError

SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".tif", ".tiff")
SYSTEM = ("__macosx", "thumbs.db", "desktop.ini")  # what systems leave behind, beside hidden files

ByClass = dict[str, list[Path]]


@dataclass
class Walk:
    """One look through a folder, counting what is no image."""

    skipped: Counter[str] = field(default_factory=Counter)
    unused: list[str] = field(default_factory=list)  # folders beside train/ and test/

    def folders(self, path: Path) -> list[Path]:
        """The folders in a folder, in order of their names; files beside them are counted."""
        try:
            inside = sorted(path.iterdir())
        except OSError as error:
            _unreadable(error)
        for file in inside:
            if not file.is_dir():
                self._skip(file.name)
        return [folder for folder in inside if folder.is_dir() and not self._skip_hidden(folder)]

    def by_class(self, path: Path, least: int) -> ByClass:
        """The images of every class folder, those in folders within it too."""
        found = {}
        for folder in self.folders(path):
            images = self._images(folder)
            if len(images) < least:
                raise UserError(f"{folder}: {len(images)} images, at least {least} needed ({', '.join(SUFFIXES)})")
            found[folder.name] = images
        return found

    def _images(self, folder: Path) -> list[Path]:
        found, seen = [], set[str]()
        for place, folders, files in os.walk(folder, onerror=_unreadable, followlinks=True):
            real = os.path.realpath(place)
            if real in seen:  # a link that leads back
                folders.clear()
                continue
            seen.add(real)
            folders[:] = [name for name in folders if not self._skip_hidden(Path(place, name))]
            for name in files:
                if Path(name).suffix.lower() in SUFFIXES and not _hidden(name):
                    found.append(Path(place, name))
                else:
                    self._skip(name)
        return sorted(found)

    def _skip_hidden(self, folder: Path) -> bool:
        """Whether a folder is none of the user's; its files are counted then."""
        if hidden := _hidden(folder.name):
            self.skipped["hidden or system"] += sum(len(files) for _, _, files in os.walk(folder))
        return hidden

    def _skip(self, name: str) -> None:
        self.skipped["hidden or system" if _hidden(name) else "other"] += 1

    def notes(self) -> tuple[str, ...]:
        """What was passed over, in a sentence."""
        kinds = [f"{count} {kind}" for kind, count in sorted(self.skipped.items()) if count]
        found = [f"files that are no images were skipped: {', '.join(kinds)}"] if kinds else []
        found += [f"folders beside train and test are not used: {', '.join(self.unused)}"] if self.unused else []
        return tuple(found)


def _unreadable(error: OSError) -> NoReturn:
    """Images that nobody may look at are missed, not passed over."""
    raise UserError(f"cannot read the folder {error.filename}: {error.strerror}; may you look into it?") from error


def _hidden(name: str) -> bool:
    return name.startswith(".") or name.lower() in SYSTEM
