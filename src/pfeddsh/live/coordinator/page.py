"""The status page, and beside it what machines ask for: read-only, on the loopback unless told otherwise.

It answers GET and HEAD for `/`, `/status.json`, `/health` and `/metrics`, and nothing else. The page is one static file
whose script and style are pinned by their hashes; names from the federation only ever become text nodes, so they cannot
become markup.
"""

import base64
import hashlib
import ipaddress
import json
import os
import re
import threading
from functools import cache
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from pathlib import Path

from pfeddsh.errors import UserError
from pfeddsh.live.coordinator.health import look
from pfeddsh.live.coordinator.metrics import exposition
from pfeddsh.live.coordinator.pulse import MINUTES
from pfeddsh.live.coordinator.status import FILE


def serve_page(folder: Path, host: str = "127.0.0.1", port: int = 0, minutes: float = MINUTES) -> ThreadingHTTPServer:
    """Serve the coordinator's status in `folder` from a thread; `.server_port` tells where, `.shutdown()` ends it."""

    class Bound(_Handler):
        pass

    Bound.folder, Bound.names, Bound.minutes = folder, _names(host), minutes
    try:
        server = ThreadingHTTPServer((host, port), Bound)
    except OSError as error:
        raise UserError(f"the status page cannot be served at {host}:{port}: {error.strerror or error}") from error
    threading.Thread(target=server.serve_forever, name="status-page", daemon=True).start()
    return server


def place(text: str) -> tuple[str, int]:
    """Host and port of PORT, or of HOST:PORT for a page that others than this host may read.

    >>> place("9480"), place("0.0.0.0:9480")
    (('127.0.0.1', 9480), ('0.0.0.0', 9480))
    """
    host, _, port = text.rpartition(":")
    if not (port.isascii() and port.isdigit() and int(port) < 65536):
        raise UserError(f"--page {text}: give a port, or HOST:PORT")
    return host.strip("[]") or "127.0.0.1", int(port)


@cache
def page() -> bytes:
    return resources.files(__package__).joinpath("page.html").read_bytes()


@cache
def policy() -> str:
    """Nothing may be loaded, run or shown but what the page itself holds, and its one request to this server."""

    def pinned(tag: str) -> str:
        content = re.search(rf"<{tag}>(.*?)</{tag}>".encode(), page(), re.DOTALL)
        assert content is not None
        return "'sha256-" + base64.b64encode(hashlib.sha256(content[1]).digest()).decode() + "'"

    return (
        f"default-src 'none'; script-src {pinned('script')}; style-src {pinned('style')}; connect-src 'self';"
        " img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


def _names(host: str) -> frozenset[str] | None:
    """The names by which a server on the loopback may be asked; a name of someone else's that points here is none."""
    try:
        loopback = ipaddress.ip_address(host).is_loopback
    except ValueError:
        loopback = host == "localhost"
    return frozenset({"localhost", "127.0.0.1", host}) if loopback else None


Content = tuple[HTTPStatus, str, bytes, str]  # status, type, body, and a tag by which an unchanged body is known


class _Handler(BaseHTTPRequestHandler):
    folder: Path
    names: frozenset[str] | None
    minutes: float
    timeout = 10

    def do_GET(self) -> None:
        self._answer(body=True)

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def _answer(self, body: bool) -> None:
        status, kind, content, tag = self._content()
        if tag and self.headers.get("If-None-Match") == tag:
            status, content = HTTPStatus.NOT_MODIFIED, b""
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Cache-Control", "no-cache" if tag else "no-store")
        if tag:
            self.send_header("ETag", tag)
        self.send_header("Content-Security-Policy", policy())
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Referrer-Policy", "no-referrer")
        self.end_headers()
        if body:
            self.wfile.write(content)

    def _content(self) -> Content:
        name = re.sub(r":\d+$", "", self.headers.get("Host", ""))
        if self.names is not None and name not in self.names:
            return HTTPStatus.MISDIRECTED_REQUEST, "text/plain", b"ask for this page by the name localhost\n", ""
        match self.path.partition("?")[0]:
            case "/":
                return HTTPStatus.OK, "text/html", page(), ""
            case "/status.json":
                return self._status()
            case "/health":
                problems = look(self.folder, self.minutes).problems
                told = json.dumps({"healthy": not problems, "problems": problems}).encode() + b"\n"
                return HTTPStatus.SERVICE_UNAVAILABLE if problems else HTTPStatus.OK, "application/json", told, ""
            case "/metrics":
                return HTTPStatus.OK, "text/plain; version=0.0.4", exposition(self.folder, self.minutes), ""
        return HTTPStatus.NOT_FOUND, "text/plain", b"there are /, /status.json, /health and /metrics\n", ""

    def _status(self) -> Content:
        """The file as it is; whoever has it already is told that it has not changed."""
        try:
            with open(self.folder / FILE, "rb") as file:
                found = os.fstat(file.fileno())
                tag = f'"{found.st_ino:x}-{found.st_mtime_ns:x}"'
                unchanged = self.headers.get("If-None-Match") == tag
                return HTTPStatus.OK, "application/json", b"" if unchanged else file.read(), tag
        except OSError:
            return HTTPStatus.SERVICE_UNAVAILABLE, "text/plain", b"no status yet\n", ""

    def version_string(self) -> str:
        return "pfeddsh"

    def log_message(self, format: str, *args: object) -> None:
        """Reading a page is no event."""
