"""Downloads from a small server that speaks the hub's language: whole and checked, or explained in one line."""

import hashlib
import json
import sys
from collections.abc import Callable, Iterator
from functools import partialmethod
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from pfeddsh import cli
from pfeddsh.data import datasets, known, locate
from pfeddsh.data.download import Files, Shards
from pfeddsh.errors import UserError

huggingface_hub = pytest.importorskip("huggingface_hub", reason="needs the extra hub")
pytest.importorskip("pooch", reason="needs the extra hub")
TREE = "/api/datasets/me/small/tree/main/plain"
SIZE = 300_000


class Server(ThreadingHTTPServer):
    """Files by their address, with what the hub tells of them; the answer about `cut` ends halfway."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[str, bytes] = {}
        self.cut: str | None = None
        self.sent: list[str] = []  # the addresses of files that were sent, whole or not
        self.address = f"http://127.0.0.1:{self.server_port}"

    def shard(self, name: str, content: bytes, sha256: str | None = None) -> None:
        """A file of the dataset me/small, listed with its checksum or a wrong one."""
        self.files[f"/datasets/me/small/resolve/main/plain/{name}"] = content
        sha256 = sha256 or hashlib.sha256(content).hexdigest()
        lfs = {"oid": sha256, "size": len(content), "pointerSize": 100}
        entry = {"type": "file", "path": f"plain/{name}", "size": len(content), "oid": "0" * 40, "lfs": lfs}
        listed = json.loads(self.files.get(TREE, b"[]"))
        self.files[TREE] = json.dumps([*listed, entry]).encode()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hangs up is what some tests want."""


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_HEAD(self) -> None:
        self.answer(body=False)

    def do_GET(self) -> None:
        self.answer(body=True)

    def answer(self, body: bool) -> None:
        content = self.server.files.get(self.path.partition("?")[0])
        if content is None:
            self.send_error(404)
            return
        begin = int(self.headers.get("Range", "bytes=0-").removeprefix("bytes=").partition("-")[0])
        self.send_response(206 if begin else 200)
        if begin:
            self.send_header("Content-Range", f"bytes {begin}-{len(content) - 1}/{len(content)}")
        self.send_header("Content-Length", str(len(content) - begin))
        self.send_header("ETag", f'"{hashlib.md5(content).hexdigest()}"')
        self.send_header("X-Repo-Commit", "1" * 40)
        self.end_headers()
        if body:
            self.server.sent.append(self.path)
            cut = self.server.cut is not None and self.server.cut in self.path
            self.wfile.write(content[begin : len(content) // 2 if cut else None])

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Server]:
    """A server, and two datasets that come from it; caches and folders of this test's own."""
    with Server() as server:
        Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        begin = huggingface_hub.HfApi.__init__
        monkeypatch.setattr(huggingface_hub.HfApi, "__init__", partialmethod(begin, endpoint=server.address))
        monkeypatch.setenv("PFEDDSH_CACHE", str(tmp_path / "cache"))
        monkeypatch.delenv("PFEDDSH_DATA", raising=False)
        monkeypatch.setattr("time.sleep", lambda _: None)  # between attempts
        shards = Shards("me/small", "plain", ("train", "test"))
        monkeypatch.setitem(known.KNOWN, "small", known.Hub(shards, "img", "label", ("a", "b"), (3, 8, 8)))
        files = Files("mine", f"{server.address}/{{}}?download=1", {"data.npz": hashlib.md5(b"content").hexdigest()})
        monkeypatch.setitem(known.KNOWN, "file", known.Published(files, ("a", "b"), lambda paths: []))
        for number, name in enumerate(("train-00000-of-00002", "train-00001-of-00002", "test-00000-of-00001")):
            server.shard(f"{name}.parquet", bytes([number]) * SIZE)
        server.files["/data.npz"] = b"content"
        yield server
        server.shutdown()


@pytest.fixture
def pfeddsh(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    def command(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["pfeddsh", *map(str, arguments)])
        monkeypatch.setattr("warnings.showwarning", lambda *_: None)
        with pytest.raises(SystemExit) as end:
            cli.main()
        return int(end.value.code or 0), *capsys.readouterr()

    return command


def content(root: Path) -> set[str]:
    """What a reader could take for data."""
    return {str(path.relative_to(root)) for path in root.rglob("*.*") if ".downloads" not in path.parts}


SMALL = {f"me/small/plain/{name}.parquet" for name in ("train-00000-of-00002", "train-00001-of-00002")} | {
    "me/small/plain/test-00000-of-00001.parquet"
}


def test_a_dataset_is_fetched_checked_and_listed(server, pfeddsh, tmp_path):
    code, told, _ = pfeddsh("data", "download", "small", "--data-dir", tmp_path / "data")
    assert code == 0 and "3 files, 0.9 MB, checksums are right" in told
    assert content(tmp_path / "data") == SMALL and not list(tmp_path.rglob(".downloads"))
    sent = len(server.sent)
    code, told, _ = pfeddsh("data", "download", "small", "--data-dir", tmp_path / "data")
    assert code == 0 and "already in" in told and len(server.sent) == sent
    assert pfeddsh("data", "download", "file")[0] == 0
    code, told, _ = pfeddsh("data", "list", "--data-dir", tmp_path / "data")
    rows = {row.split()[0]: row.split()[-1] for row in told.splitlines()}
    assert rows["small"].startswith(str(tmp_path)[:10]) and rows["digits"] == "embedded"
    assert "not here" in next(row for row in told.splitlines() if row.strip().startswith("cifar100"))
    assert locate.downloads().joinpath("mine", "data.npz").read_bytes() == b"content", "without --data-dir: the cache"


def test_an_interrupted_download_leaves_no_dataset_and_goes_on(server, pfeddsh, tmp_path):
    server.cut = "train-00001"
    code, _, errors = pfeddsh("data", "download", "small", "--data-dir", tmp_path)
    refused = errors.splitlines()[-1]
    assert code == 2 and refused.startswith("error: the download of small failed") and "goes on" in refused
    assert any("train-00000" in address for address in server.sent), "a shard was there before"
    assert content(tmp_path) == set()
    server.sent, server.cut = [], None
    assert pfeddsh("data", "download", "small", "--data-dir", tmp_path)[0] == 0
    assert content(tmp_path) == SMALL
    assert not any("train-00000" in address for address in server.sent), "it was not fetched again"
    whole = (tmp_path / "me/small/plain/train-00001-of-00002.parquet").read_bytes()
    assert whole == b"\1" * SIZE


def test_a_wrong_checksum_is_refused_wherever_the_file_is_from(server, pfeddsh, tmp_path):
    server.files.pop(TREE)
    server.shard("train-00000-of-00001.parquet", b"train", sha256="0" * 64)
    code, _, errors = pfeddsh("data", "download", "small", "--data-dir", tmp_path)
    assert code == 2 and "plain/train-00000-of-00001.parquet: sha256" in errors.splitlines()[-1]
    server.files["/data.npz"] = b"other content"
    code, _, errors = pfeddsh("data", "download", "file", "--data-dir", tmp_path)
    assert code == 2 and "hash of downloaded file" in errors.splitlines()[-1]
    assert content(tmp_path) == set()


def test_what_is_missing_or_misnamed_on_the_hub_is_said(server, pfeddsh, tmp_path):
    server.files.pop(TREE)
    code, _, errors = pfeddsh("data", "download", "small", "--data-dir", tmp_path)
    assert code == 2 and "the download of small failed" in errors and "404" in errors
    assert not list(tmp_path.glob(".downloads")), "nothing was fetched"
    code, _, errors = pfeddsh("data", "download", "small", "--data-dir", tmp_path / "new" / "place")
    assert code == 2 and f"`pfeddsh data download small --data-dir {tmp_path}/new/place` goes on" in errors
    assert not (tmp_path / "new").exists()
    server.shard("../../../escaped.parquet", b"x")
    code, _, errors = pfeddsh("data", "download", "small", "--data-dir", tmp_path)
    assert code == 2 and "the hub has no plain/*.parquet in me/small" in errors
    server.shard("train-00000-of-00001.parquet", b"train")
    code, _, errors = pfeddsh("data", "download", "small", "--data-dir", tmp_path)
    assert code == 2 and "lacks some of train-*.parquet and test-*.parquet" in errors


def test_without_the_extra_one_line_says_how_to_get_it(server, pfeddsh, tmp_path, monkeypatch):
    for module, name in (("huggingface_hub", "small"), ("pooch", "file")):
        monkeypatch.setitem(sys.modules, module, None)
        code, _, errors = pfeddsh("data", "download", name, "--data-dir", tmp_path)
        assert code == 2 and errors == f"error: downloading {name} needs an extra: pip install 'pfeddsh[hub]'\n"
    with pytest.raises(UserError, match=r"dataset 'small' was not found: .*pip install 'pfeddsh\[hub\]'"):
        datasets.load("small")


def test_a_run_fetches_what_is_nowhere_into_the_cache(server):
    with pytest.raises(UserError, match=r"train-00000-of-00002\.parquet"):  # fetched; its bytes are no parquet
        datasets.load("small")
    assert content(locate.downloads()) == SMALL
