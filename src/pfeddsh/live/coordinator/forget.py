"""Sites that cannot ask for their deletion themselves, as they are revoked or have lost their key: the operator asks.

He may do so whether the coordinator runs or not: it finds what is asked for in a folder, and takes it out when done.
"""

from contextlib import suppress
from pathlib import Path

from pfeddsh.errors import UserError
from pfeddsh.live.coordinator.roster import Roster, mark_of
from pfeddsh.live.security.certs import fingerprint
from pfeddsh.live.security.listed import PLACES, sites
from pfeddsh.storage.files import write_text

FOLDER = "forget"  # a file for each key


def ask(folder: Path, name: str) -> list[str]:
    """Have everything deleted that is of this site alone, and admit it no more; the keys it had."""
    roster = Roster.load(folder / "clients.json")
    keys = {site.key for site in sites(folder) if site.name == name}
    keys |= {known.key for known in roster.sites() if known.name == name}
    if not keys:
        raise UserError(f"no site '{name}' is known in {folder}; `pfeddsh nodes list` and `pfeddsh status` name them")
    (folder / FOLDER).mkdir(exist_ok=True)
    for key in keys:
        write_text(folder / FOLDER / mark_of(key), key + "\n")
    for place, _ in PLACES:
        for path in (folder / "tls" / place).glob("*.pub"):
            with suppress(UserError):  # a damaged one admits nobody
                if fingerprint(path.read_bytes()) in keys:
                    path.unlink()
    return sorted(keys)


def asked(folder: Path) -> list[str]:
    """Keys of sites that are to be forgotten."""
    return [path.read_text().strip() for path in sorted((folder / FOLDER).glob("[!.]*"))]


def done(folder: Path, key: str) -> None:
    (folder / FOLDER / mark_of(key)).unlink(missing_ok=True)
