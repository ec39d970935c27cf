"""What both sides need of their machine: versions, room on the disk, a folder of their own, the right time."""

import ctypes
import importlib.metadata
import os
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from pfeddsh.live.coordinator.status import size
from pfeddsh.live.doctor.findings import Finding, ok, stop, warning

LITTLE, SCARCE = 200_000_000, 2_000_000_000  # bytes free: nothing can be written safely; it may get tight
TIME_ERROR = 5  # what Linux answers if nobody has set its clock by another one


def versions() -> Iterator[Finding]:
    """Flower's version is pinned: both sides must have the same."""
    own = importlib.metadata.version("pfeddsh")
    wanted = next(
        (
            found[1]
            for line in importlib.metadata.requires("pfeddsh") or []
            if (found := re.match(r"flwr==([\w.]+)", line))
        ),
        None,
    )
    try:
        flower = importlib.metadata.version("flwr")
    except importlib.metadata.PackageNotFoundError:
        yield stop("versions", "Flower is not installed: pip install 'pfeddsh[flower]'")
        return
    told = (
        f"pfeddsh {own}, Flower {flower}, torch {importlib.metadata.version('torch')}, Python {sys.version.split()[0]}"
    )
    if wanted and flower != wanted:
        yield stop("versions", f"{told}: this pfeddsh needs Flower {wanted}: pip install flwr=={wanted}")
    else:
        yield ok("versions", told)


def folder(path: Path) -> Iterator[Finding]:
    if not os.access(path, os.R_OK | os.W_OK | os.X_OK):
        yield stop("folder", f"{path} cannot be written by this user: run as its owner, or change the owner")
        return
    owner = path.stat().st_uid
    if owner != os.geteuid():
        yield warning("folder", f"{path} belongs to the user {owner}: run this, and the service, as that user")
    else:
        yield ok("folder", f"{path} can be written")
    if path.stat().st_mode & 0o002:
        yield warning("folder", f"anyone may write to {path}: chmod o-w {path}")
    free = shutil.disk_usage(path).free
    if free < LITTLE:
        yield stop("disk", f"only {size(free)} are free on the disk of {path}: make room")
    elif free < SCARCE:
        yield warning("disk", f"{size(free)} are free on the disk of {path}: make room before it fills up")
    else:
        yield ok("disk", f"{size(free)} free")


def clock() -> Iterator[Finding]:
    """Whether something keeps the clock right; how far it is off, only another clock can tell."""
    if sys.platform != "linux":
        return
    state = ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(1024))
    if state == TIME_ERROR:
        yield warning("clock", "nothing keeps this machine's clock right: switch on NTP (timedatectl set-ntp true)")
    elif state >= 0:
        yield ok("clock", "kept right by the operating system")


def private(path: Path) -> Iterator[Finding]:
    """A private key is for its owner alone."""
    if path.exists() and path.stat().st_mode & 0o077:
        yield warning("keys", f"others than its owner can read {path}: chmod 600 {path}")
