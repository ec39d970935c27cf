"""Why a site was refused, in plain words for both sides: its SuperNode's log there, the proxy's logs here."""

import base64
import datetime
import json
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from pfeddsh.errors import UserError
from pfeddsh.live.security.certs import fingerprint
from pfeddsh.live.security.listed import ListedSite, sites
from pfeddsh.live.security.proxy import ERRORS, LOG

PIECE = 1 << 20  # bytes of a log that are looked at at a time

# What a SuperNode writes, and what it means; the first that is found counts. Flower 1.41.
SAYINGS = (
    (
        r"CERTIFICATE_VERIFY_FAILED.*(local issuer|self.signed|subject key|signature failure)",
        "the server's certificate was not made by the CA in ca.crt: get the operator's ca.crt again, over a safe way",
    ),
    (
        r"CERTIFICATE_VERIFY_FAILED.*(Hostname mismatch|IP address mismatch)",
        "the server's certificate does not name this address: use a name the operator gave to `pfeddsh certs --host`",
    ),
    (
        r"CERTIFICATE_VERIFY_FAILED.*expired",
        "the server's certificate has expired by this machine's clock, which says {now}: set the clock if it is wrong;"
        " if it is right, the operator has to renew the certificate",
    ),
    (
        r"CERTIFICATE_VERIFY_FAILED.*not yet valid",
        "the server's certificate is not valid yet by this machine's clock, which says {now}: set the clock",
    ),
    (
        r"SSL/TLS handshake error|\[SSL",
        "no TLS connection could be made: is this the address of the federation's proxy?",
    ),
    (
        r"code: 2001|fleet/register-node",
        "the federation admits only known sites, and no key was presented: make one with `pfeddsh keygen`, send the"
        " operator node.key.pub, and join with it",
    ),
    (
        r"code: 2004",
        "the federation does not accept this site's key: it is not registered, it was revoked, or another process uses"
        " it (after a crash for up to a minute): ask the operator for `pfeddsh nodes list`",
    ),
    (
        r"FAB could not be verified|FAB verification failed",
        "the app that the coordinator sent is not signed by the key this site trusts: ask the operator to run `pfeddsh"
        " sign`, and compare his public key with trusted.yaml",
    ),
    (r"Exit Code: 302", "node.key is not a readable elliptic-curve key: restore it, or make a new one"),
    (r"Exit Code: 303", "a key is of use only with TLS: leave out --insecure, and give the federation's ca.crt"),
    (r"Exit Code: 606", "site and coordinator run versions of Flower that do not fit: install the coordinator's"),
    (r"Exit Code: 600", "the address of the federation is not one: expected HOST:PORT"),
    (r"Exit Code: 604", "a file given to the SuperNode does not exist: look for ca.crt and node.key"),
    (
        r"401 Unauthorized",
        "the federation did not accept the signature: the key was revoked, or this machine's clock, which says {now},"
        " is more than five minutes off: `pfeddsh doctor` compares it with the server's",
    ),
    (r"'(404|403|405) ", "what answers at this address is not a federation's proxy"),
    (r"Exit Code: 305", "the federation could not be reached: see the SuperNode's log"),
    (
        r"SuperNode terminated gracefully",
        "the federation ended the session: the key was revoked, the server was started anew, or this machine's clock,"
        " which says {now}, is more than five minutes off: `pfeddsh doctor` compares it with the server's",
    ),
)


def explain(log: str) -> str | None:
    """What a SuperNode that ended without being asked to says in its log, as a sentence for the site; None if nothing.

    >>> explain("ERROR: Exit Code: 305 ... [code: 2001] SuperNode authentication is enabled.")[:41]
    'the federation admits only known sites, a'
    """
    now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
    return next((meaning.format(now=now) for pattern, meaning in SAYINGS if re.search(pattern, log)), None)


class Watcher:
    """What the proxy has refused since last asked, in the form of status.json. The first time: since this was made.

    A name in it is what the caller claimed: anyone can show a site's public key, and is refused for want of the other.
    """

    LIMIT = 20  # of different refusals told at a time: whoever knocks a thousand times must not fill our books

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._tails = {name: Tail(folder / name) for name in (LOG, ERRORS)}

    def new(self) -> list[dict[str, str]]:
        known = {site.key: site for site in sites(self.folder)}
        seen = [_understood(lambda line: _request(line, known), line) for line in self._tails[LOG].lines()]
        seen += [_understood(_handshake, line) for line in self._tails[ERRORS].lines()]
        found = [entry for entry in seen if entry]
        times = Counter((client, reason) for _, client, reason in found)
        latest = {(client, reason): time for time, client, reason in found}
        told = [
            {
                "time": time,
                "client": client,
                "reason": reason + (f" ({n} times)" if (n := times[client, reason]) > 1 else ""),
            }
            for (client, reason), time in latest.items()
        ]
        return sorted(told, key=lambda entry: entry["time"])[-self.LIMIT :]


class Tail:
    """The complete lines a growing file has gained; if it was rotated away, the new one is read from its start."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._place = self._size()

    def _size(self) -> int:
        try:
            return self.path.stat().st_size
        except OSError:
            return 0

    def lines(self) -> list[str]:
        """None of a file that cannot be read: it may be rotated away at this moment."""
        if self._size() < self._place:
            self._place = 0
        try:
            with open(self.path, "rb") as file:
                file.seek(self._place)
                read = file.read(PIECE)
        except OSError:
            return []
        text, end, _ = read.rpartition(b"\n")
        endless = len(read) == PIECE and not end
        self._place += len(read) if endless else len(text) + len(end)
        return text.decode(errors="replace").splitlines()


Entry = tuple[str, str, str]  # time, client, reason


def _understood(read: Callable[[str], Entry | None], line: str) -> Entry | None:
    """What a line says, if anything: callers write part of it, and must not be able to break more than their line."""
    try:
        return read(line)
    except Exception:
        return None


def _request(line: str, known: dict[str, ListedSite]) -> Entry | None:
    """A line of the access log, which holds only what was not answered with success."""
    entry = json.loads(line)
    status, path = int(entry["status"]), str(entry["path"])
    key = _key(str(entry.get("key", "")))
    site = known.get(key)
    if status == 403 and site:
        return None  # Flower's way to say that a run has ended; nobody did wrong
    client = site.name if site else key or str(entry["address"])[:64]
    time = datetime.datetime.fromisoformat(str(entry["time"])).isoformat()
    return time, client, _reason(status, path, key, site)


def _reason(status: int, path: str, key: str, site: ListedSite | None) -> str:
    what = path.removeprefix("/v1/fleet/")
    if what == "register-node":
        return "came without a registered key"
    if not path.startswith("/v1/fleet/"):
        return f"asked for {path[:80]}, which is not open to the outside"
    if status == 413:
        return f"sent more than the proxy accepts ({what})"
    if status == 503:
        return f"too many requests ({what})"
    if status in (502, 504):
        return f"the SuperLink did not answer ({what})"
    if status in (401, 412) and site and site.state == "revoked":
        return "its key was revoked"
    if status in (401, 412) and key and not site:
        return "its key is not registered"
    if status == 412 and what == "activate-node":
        return "its key is in use by another process, or was until a minute ago"
    if status == 401:
        return "its signature was not accepted: another node's session, or its clock is wrong"
    return f"answered with {status} ({what[:80]})"


def _key(header: str) -> str:
    """The fingerprint of the public key a SuperNode sends along; empty if there is none to be read."""
    try:
        return fingerprint(base64.b64decode(header, validate=True)) if header else ""
    except (ValueError, UserError):
        return ""


def _handshake(line: str) -> Entry | None:
    """A line of the error log; of interest are TLS handshakes that failed."""
    found = re.match(r"(\S+ \S+) \[\w+\].*SSL_do_handshake\(\) failed \(SSL: (.*)\) while SSL.*client: ([^,]+)", line)
    if not found:
        return None
    time = datetime.datetime.strptime(found[1], "%Y/%m/%d %H:%M:%S").astimezone().isoformat()
    why = re.sub(r":SSL alert number \d+$", "", found[2]).rpartition(":")[2]
    said = "does not trust our certificate: it has another ca.crt" if "unknown ca" in why else f"TLS failed: {why}"
    return time, found[3][:64], said[:200]
