"""The status of a federation, in the terminal and in a browser: it shows what status.json says, and only that."""

import http.client
import json
import shutil
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from axe import serious
from conftest import lacking
from rich.console import Console
from status_sample import HOSTILE, crowd, sample

from pfeddsh.errors import UserError
from pfeddsh.live.coordinator.page import serve_page
from pfeddsh.live.coordinator.status import read_status, render

NONE, MINUS = "\u2013", "\u2212"  # how the page writes them


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "status.json").write_text(json.dumps(sample()))
    return tmp_path


@pytest.fixture
def server(folder: Path) -> Iterator[ThreadingHTTPServer]:
    server = serve_page(folder)
    yield server
    server.shutdown()
    server.server_close()


def shown(folder: Path) -> str:
    console = Console(width=140, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(render(read_status(folder)))
    return console.export_text()


def test_the_terminal_shows_the_federation_on_one_screen(folder: Path) -> None:
    text = shown(folder)
    for part in (
        "training",
        "round 7 of 20  about 13 min to go",
        "1 accepted",
        "48.2 MB down",
        "2 served, 1 quarantined, 1 revoked",
        "81.0 %",  # the mean of those known in batch 1
        "waiting to join: latecomer",
        "theta has values that are not finite",
        "+12.3  -",
        HOSTILE,
    ):
        assert part in text
    assert len(text.splitlines()) <= 24


def test_ten_thousand_clients_fit_on_one_screen_too(folder: Path) -> None:
    (folder / "status.json").write_text(json.dumps(crowd(10_000)))
    text = shown(folder)
    assert "and 90 earlier batches of 9000 clients" in text and len(text.splitlines()) <= 32


def test_a_name_cannot_reach_the_terminal(folder: Path) -> None:
    status = sample()
    status["queue"][0]["name"] = "\x1b[2J[red]gone"
    (folder / "status.json").write_text(json.dumps(status))
    assert "waiting to join: ?[2J[red]gone" in shown(folder)


def test_a_status_of_a_federation_without_clients_can_be_shown(folder: Path) -> None:
    empty: dict[str, Any] = sample() | {
        "queue": [],
        "clients": [],
        "refused": [],
        "pa": [],
        "ri": [],
        "eta_seconds": None,
    }
    (folder / "status.json").write_text(json.dumps(empty))
    assert "step 2" in shown(folder)


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"schema": 2}', "{"])
def test_what_is_no_status_is_said_to_be_none(folder: Path, text: str) -> None:
    (folder / "status.json").write_text(text)
    with pytest.raises(UserError, match="not a status this version reads"):
        read_status(folder)


def test_a_folder_without_status_is_said_to_have_none(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no status in"):
        read_status(tmp_path)


def ask(
    server: ThreadingHTTPServer, verb: str, path: str, host: str = "localhost", tag: str = ""
) -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=60)
    connection.request(verb, path, headers={"Host": host, "If-None-Match": tag})
    return connection.getresponse()


def test_the_page_only_reads(folder: Path, server: ThreadingHTTPServer) -> None:
    answer = ask(server, "GET", "/status.json")
    assert answer.status == 200 and json.loads(answer.read()) == sample()
    head = ask(server, "HEAD", "/")
    assert head.status == 200 and head.read() == b"" and int(head.headers["Content-Length"]) > 1000
    security = head.headers["Content-Security-Policy"]
    assert "default-src 'none'" in security and "unsafe" not in security
    for verb in ("POST", "PUT", "DELETE", "OPTIONS"):
        assert ask(server, verb, "/status.json").status == 501
    for path in ("/../status.json", "/tls/ca.key", "/events.jsonl"):
        assert ask(server, "GET", path).status == 404
    assert ask(server, "GET", "/status.json", host="rebound.example").status == 421
    (folder / "status.json").unlink()
    assert ask(server, "GET", "/status.json").status == 503


def test_a_place_in_use_is_said(server: ThreadingHTTPServer, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be served"):
        serve_page(tmp_path, port=server.server_port)


def table(view: Any, place: str) -> list[list[str]]:
    read = "rows => rows.map(row => [...row.cells].map(cell => cell.textContent))"
    rows: list[list[str]] = view.eval_on_selector_all(f"#{place} tbody tr", read)
    return rows


def test_an_unchanged_status_is_not_sent_again(folder: Path, server: ThreadingHTTPServer) -> None:
    tag = ask(server, "GET", "/status.json").headers["ETag"]
    assert ask(server, "GET", "/status.json", tag=tag).status == 304
    (folder / "new.json").write_text(json.dumps(sample()))
    (folder / "new.json").replace(folder / "status.json")
    assert ask(server, "GET", "/status.json", tag=tag).status == 200


def test_a_browser_shows_what_the_file_says(folder: Path, server: ThreadingHTTPServer) -> None:
    try:
        import playwright.sync_api as playwright
    except ModuleNotFoundError:
        lacking("needs the package playwright")
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    if program is None:
        lacking("needs Debian's package chromium")
    said: list[str] = []
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(
            executable_path=program, args=["--no-sandbox", "--disable-gpu"], timeout=180_000
        )
        view = browser.new_page(viewport={"width": 390, "height": 800})
        view.set_default_timeout(180_000)
        view.on("console", lambda message: said.append(message.text))
        view.on("pageerror", lambda error: said.append(str(error)))
        asked: list[str] = []
        view.on("request", lambda request: asked.append(request.url))
        view.goto(f"http://localhost:{server.server_port}/")
        view.wait_for_selector("#clients td.name")
        status = sample()
        clients = table(view, "clients")
        assert [row[0] for row in clients] == [client["name"] for client in status["clients"]]
        assert [int(row[1]) for row in clients] == [client["batch"] for client in status["clients"]]
        assert [row[2] for row in clients] == [client["state"] for client in status["clients"]]
        assert [row[3] == "online" for row in clients] == [client["online"] for client in status["clients"]]
        assert [row[7] for row in clients][:4] == ["79.5 % → 80.0 %", "80.5 % → 81.0 %", f"{NONE} → 82.0 %", NONE]
        assert [row[5:7] for row in clients][-2:] == [["82.0 %", "74.0 %"], ["83.0 %", "75.0 %"]]
        assert [int(row[9]) for row in clients] == [client["refused"] for client in status["clients"]]
        assert [row[:3] for row in table(view, "batches")] == [["Batch 2", "2", "2"], ["Batch 1", "4", "2"]]
        view.wait_for_selector("#trouble:has-text('no progress for')", timeout=180_000)
        queue = view.eval_on_selector_all("#queue td.name", "cells => cells.map(cell => cell.textContent)")
        assert queue == [entry["name"] for entry in status["queue"]]
        refused = view.eval_on_selector_all("#refused td.reason", "cells => cells.map(cell => cell.textContent)")
        assert refused == [entry["reason"] for entry in reversed(status["refused"])]
        assert view.text_content("#place") == "Step 2, round 7 of 20"
        assert view.text_content("#eta") == "about 13 min to go"
        assert "1 of 3" in view.text_content("#tiles") and "48.2 MB" in view.text_content("#tiles")
        assert view.eval_on_selector_all("#steps td.number", "cells => cells.map(cell => cell.textContent)") == [
            NONE,
            f"{MINUS}0.3",
            "+12.3",
            NONE,
        ]
        assert view.title() == "Federation" and view.query_selector("main img, main script") is None
        assert view.evaluate("document.documentElement.scrollWidth <= innerWidth")  # nothing sticks out on a phone
        for scheme in ("light", "dark"):
            view.emulate_media(color_scheme=scheme)
            assert serious(view) == set()

        status |= {"phase": "done", "round": 20}
        (folder / "new.json").write_text(json.dumps(status))
        (folder / "new.json").replace(folder / "status.json")
        view.wait_for_selector("#phase:text-is('done')", timeout=180_000)
        view.wait_for_selector("#trouble", state="hidden", timeout=180_000)

        (folder / "new.json").write_text(json.dumps(crowd(10_000)))
        (folder / "new.json").replace(folder / "status.json")
        view.wait_for_selector("#phase:text-is('waiting')", timeout=180_000)
        assert len(table(view, "clients")) == 25 and "1 to 25 of 10000" in view.text_content("#clients")
        view.click("#clients button:text-is('Next')")
        assert table(view, "clients")[0][0] == "site-00025"
        view.fill("#find", "site-09999")
        assert [row[0] for row in table(view, "clients")] == ["site-09999"]
        assert view.evaluate("document.documentElement.scrollWidth <= innerWidth")
        errors = [text for text in said if "Failed to load" not in text]  # /health answers 503: no coordinator runs
        browser.close()  # which ends requests under way
    assert errors == []
    assert {url.split("/")[2] for url in asked if not url.startswith("data:")} == {f"localhost:{server.server_port}"}
