"""The status page: read-only, self-contained, on the loopback unless told otherwise.

It answers GET and HEAD for `/` and `/status.json` and nothing else. The page is one static file whose script and style
are pinned by their hashes; names from the federation only ever become text nodes, so they cannot become markup.
"""

import base64
import hashlib
import ipaddress
import re
import threading
from functools import cache
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from pathlib import Path

from pfeddsh.errors import UserError
from pfeddsh.live.coordinator.status import read_text


def serve_page(folder: Path, host: str = "127.0.0.1", port: int = 0) -> ThreadingHTTPServer:
    """Serve the coordinator's status in `folder` from a thread; `.server_port` tells where, `.shutdown()` ends it."""

    class Bound(_Handler):
        pass

    Bound.folder, Bound.names = folder, _names(host)
    try:
        server = ThreadingHTTPServer((host, port), Bound)
    except OSError as error:
        raise UserError(f"the status page cannot be served at {host}:{port}: {error.strerror or error}") from error
    threading.Thread(target=server.serve_forever, name="status-page", daemon=True).start()
    return server


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


class _Handler(BaseHTTPRequestHandler):
    folder: Path
    names: frozenset[str] | None
    timeout = 10

    def do_GET(self) -> None:
        self._answer(body=True)

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def _answer(self, body: bool) -> None:
        status, kind, content = self._content()
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("Content-Security-Policy", policy())
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Referrer-Policy", "no-referrer")
        self.end_headers()
        if body:
            self.wfile.write(content)

    def _content(self) -> tuple[HTTPStatus, str, bytes]:
        name = re.sub(r":\d+$", "", self.headers.get("Host", ""))
        if self.names is not None and name not in self.names:
            return HTTPStatus.MISDIRECTED_REQUEST, "text/plain", b"ask for this page by the name localhost\n"
        path = self.path.partition("?")[0]
        if path == "/":
            return HTTPStatus.OK, "text/html", page()
        if path == "/status.json":
            try:
                return HTTPStatus.OK, "application/json", read_text(self.folder).encode()
            except UserError:
                return HTTPStatus.SERVICE_UNAVAILABLE, "text/plain", b"no status yet\n"
        return HTTPStatus.NOT_FOUND, "text/plain", b"there are / and /status.json\n"

    def version_string(self) -> str:
        return "pfeddsh"

    def log_message(self, format: str, *args: object) -> None:
        """Reading a page is no event."""
