"""Sites that run only code they trust: the app that Flower hands to them is signed, and they know whose key may sign.

Flower checks signatures at the site (`--trusted-entities`), but takes them from its public hub alone: a bundle that is
submitted from disk carries none. So `serve` answers, on the loopback, the one question that a SuperLink asks of that
hub, with the bundle and the signature that `pfeddsh sign` left in the folder. The key that signs can be elsewhere.
"""

import base64
import hashlib
import json
import subprocess
import tempfile
import threading
import time
import tomllib
import zipfile
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from pathlib import Path

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_ssh_private_key,
)

from pfeddsh.errors import UserError
from pfeddsh.live.processes import environment, flower
from pfeddsh.live.security.certs import write_new
from pfeddsh.live.security.trusted import key_id, read_signer
from pfeddsh.storage.files import replacing, write_text

APP, SIGNATURE = "app.fab", "signature.json"


def sign(folder: Path, key: Path) -> Path:
    """Bundle the app of this pfeddsh and sign it, into `folder`/signed; returns the public key's file.

    A key that does not exist is made: Ed25519, as `ssh-keygen -t ed25519` writes it.
    """
    if not key.exists():
        made = Ed25519PrivateKey.generate().private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
        write_new(key, made, 0o600)
    try:
        private = load_ssh_private_key(key.read_bytes(), None)
    except (OSError, ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise UserError(f"{key} cannot sign ({error}); give an Ed25519 key without a passphrase") from error
    if not isinstance(private, Ed25519PrivateKey):
        raise UserError(f"{key} is not an Ed25519 key; make one with `ssh-keygen -t ed25519 -f {key.name}`")
    line = private.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    public = key.with_name(f"{key.name}.pub")
    if not public.exists():
        write_new(public, line + b"\n", 0o644)
    bundle, now = _bundle(), int(time.time())
    signature = base64.urlsafe_b64encode(private.sign(_message(bundle, now))).decode()
    place = folder / "signed"
    place.mkdir(parents=True, exist_ok=True)
    with replacing(place / APP) as temporary:
        temporary.write_bytes(bundle)
    told = {"public_key_id": key_id(line), "public_key": line.decode(), "signature": signature, "signed_at": now}
    write_text(place / SIGNATURE, json.dumps(told, indent=1) + "\n")
    return public


@dataclass(frozen=True)
class Signed:
    """A bundle with its signature, as `sign` left them."""

    bundle: bytes
    verification: dict[str, str | int]
    name: str  # as Flower calls the app: @publisher/name==version


def signed(folder: Path) -> Signed | None:
    """What is signed in a coordinator's folder, if anything; it must be the app of the pfeddsh that runs here."""
    place = folder / "signed"
    if not (place / APP).exists():
        return None
    again = f"sign it again with `pfeddsh sign {folder} --key KEY`"
    try:
        bundle = (place / APP).read_bytes()
        told = json.loads((place / SIGNATURE).read_text())
        key = read_signer(told["public_key"].encode(), str(place / SIGNATURE))
        key.verify(base64.urlsafe_b64decode(told["signature"]), _message(bundle, told["signed_at"]))
        with zipfile.ZipFile(place / APP) as archive:
            content = {name: archive.read(name) for name in archive.namelist()}
        app = tomllib.loads(content["pyproject.toml"].decode())
        name = f"@{app['tool']['flwr']['app']['publisher']}/{app['project']['name']}=={app['project']['version']}"
    except (OSError, ValueError, KeyError, TypeError, AttributeError, InvalidSignature, zipfile.BadZipFile) as error:
        raise UserError(f"{place}: the signature does not fit the app ({error!r}); {again}") from error
    for path, code in _code().items():
        if content.get(path) != code:
            raise UserError(f"{place}: {path} is not that of the pfeddsh installed here; {again}")
    return Signed(bundle, {k: told[k] for k in ("public_key_id", "signature", "signed_at")}, name)


class AppHub:
    """Answers a SuperLink on the loopback as Flower's hub would: where the app is, and who has signed it."""

    def __init__(self, app: Signed) -> None:
        class Bound(_Handler):
            pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Bound)
        self.address = f"http://127.0.0.1:{self._server.server_port}"
        Bound.bundle = app.bundle
        Bound.told = json.dumps({"fab_url": f"{self.address}/{APP}", "verifications": [app.verification]}).encode()
        threading.Thread(target=self._server.serve_forever, name="hub", daemon=True).start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    bundle: bytes
    told: bytes
    timeout = 10

    def do_POST(self) -> None:
        self._answer(self.told if self.path == "/hub/fetch-fab" else None, "application/json")

    def do_GET(self) -> None:
        self._answer(self.bundle if self.path == f"/{APP}" else None, "application/octet-stream")

    def _answer(self, content: bytes | None, kind: str) -> None:
        self.send_response(HTTPStatus.NOT_FOUND if content is None else HTTPStatus.OK)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content or b"")))
        self.end_headers()
        self.wfile.write(content or b"")

    def log_message(self, format: str, *args: object) -> None:
        """The SuperLink's log tells of the run."""


def _message(bundle: bytes, time: int) -> bytes:
    """What Flower signs: when, in eight bytes, and the SHA-256 of the bundle."""
    return time.to_bytes(8, "big") + hashlib.sha256(bundle).digest()


def _code() -> dict[str, bytes]:
    """The Python files of the app, by their place in a bundle."""
    root = Path(str(files("pfeddsh.live") / "app"))
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*.py")}


def _bundle() -> bytes:
    with tempfile.TemporaryDirectory() as place:
        command = [flower("flwr"), "build", "--app", str(files("pfeddsh.live") / "app")]
        env = environment(Path(place) / ".flwr")
        done = subprocess.run(command, cwd=place, env=env, capture_output=True, text=True, timeout=120)
        made = list(Path(place).glob("*.fab"))
        if len(made) != 1:
            raise UserError(f"Flower did not bundle the app: {(done.stdout + done.stderr).strip()[-500:]}")
        return made[0].read_bytes()
