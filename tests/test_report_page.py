"""The page itself, looked at by a browser, and the command that makes it."""

import base64
import io
import json
import random
import re
import resource
import statistics
import sys
import warnings
from itertools import combinations

import numpy as np
import pytest
from axe import serious
from fabricate import results, write
from PIL import Image

from pfeddsh import cli
from pfeddsh.errors import UserError
from pfeddsh.methods import registry
from pfeddsh.report import first, images
from pfeddsh.report.build import build
from pfeddsh.report.looks import KNOWN
from pfeddsh.report.svg import DARK, HUES, LIGHT, PALETTE, SHADES, canvas, styled, variables

METHODS = (
    "fedavg", "fedper", "fedrep", "fedselect", "pfedhn", "pefll", "odpfl-hn", "fedweit", "fedclass", "hr", "pfeddsh",
    "pfeddsh-hyper-gate",
)  # fmt: skip
SCHEDULES = ("80+20", "80+4x5", "80+10x2")
LIMIT = 5_000_000


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The page of Table 1: twelve methods, three schedules; one of them with three seeds."""
    folder = tmp_path_factory.mktemp("table1")
    for schedule in SCHEDULES:
        for method in METHODS:
            write(folder / "runs" / f"{method}-{schedule}", results(method, schedule))
    for seed in (1, 2):
        write(folder / "runs" / f"fedper-{seed}", results("fedper", "80+20", seed))
    (folder / "runs" / "half").mkdir()
    (folder / "runs" / "half" / "config.toml").write_text("")
    built = build([folder / "runs"], folder / "page.html", "pfeddsh report runs --out page.html")
    return folder, built


def test_the_page_is_one_small_file_that_loads_nothing(site):
    folder, built = site
    text = (folder / "page.html").read_text()
    assert built.runs == 38
    assert len(text.encode()) < LIMIT
    assert not re.search(r"""(?:src|href)=["'](?!#|data:)""", text)
    assert text.count("<script>") == 1 and "<script src" not in text
    assert "url(http" not in text


def test_the_same_runs_give_the_same_page(site, tmp_path):
    folder, _ = site
    one = [folder / "runs" / "fedper-80+20", folder / "runs" / "pfeddsh-80+20"]
    for name in ("a.html", "b.html"):
        build(one, tmp_path / name, "again")
    assert (tmp_path / "a.html").read_bytes() == (tmp_path / "b.html").read_bytes()


def test_tables_lie_beside_the_page_in_three_formats(site):
    folder, built = site
    names = {path.name for path in built.tables.iterdir()}
    for table in ("standings", "table1", "tests", "measures", "ablation", "losses", "latency", "payload", "capacity"):
        assert {f"{table}.csv", f"{table}.md", f"{table}.tex"} <= names
    assert built.tables == folder / "page-tables"


@pytest.fixture(scope="module")
def page(browser, site):
    """The page in a browser that is offline, with everything it complains of."""
    folder, _ = site
    context = browser.new_context(offline=True, viewport={"width": 1280, "height": 900})
    page = context.new_page()
    page.complaints = []
    page.on("console", lambda message: page.complaints.append(message.text))
    page.on("pageerror", lambda error: page.complaints.append(str(error)))
    page.on("requestfailed", lambda request: page.complaints.append(request.url))
    page.goto((folder / "page.html").as_uri())
    yield page
    context.close()


def test_the_first_screen_is_a_picture_and_the_rest_is_folded(page):
    box = page.locator("figure svg").first.bounding_box()
    assert box["y"] + box["height"] < 900 and box["width"] > 300
    assert page.evaluate("document.documentElement.scrollHeight") < 3 * 900
    assert page.locator("table[data-table]:visible").count() == 1, "one table, of the widest comparison"
    assert page.locator("h1").inner_text().endswith("points in a step.")


def test_a_click_sorts_a_table_and_another_turns_it(page):
    table = page.locator("table[data-table=standings]").first

    def column():
        cells = table.locator("td[data-column='PA']").all()
        return [float(cell.get_attribute("data-value")) for cell in cells]

    heading = table.locator("th button").filter(has_text=re.compile(r"^PA\s+points$"))
    heading.click()
    assert column() == sorted(column(), reverse=True)
    heading.click()
    assert column() == sorted(column())
    assert table.locator("th[aria-sort=ascending]").count() == 1


def test_the_browser_has_nothing_to_complain_of(page):
    assert page.complaints == []


def unfold(page):
    page.evaluate("document.querySelectorAll('details').forEach(each => { each.open = true })")


def test_all_figures_are_drawn(page):
    unfold(page)
    drawn = page.eval_on_selector_all(
        "figure svg",
        "all => all.map(svg => [svg.getBoundingClientRect().width, svg.querySelectorAll('path,polyline').length,"
        " svg.getAttribute('aria-label') || ''])",
    )
    cards, per_schedule, capacity = len(SCHEDULES) * len(METHODS), len(SCHEDULES) * 7, len(SCHEDULES)
    growing = len(SCHEDULES) - 1  # all but 80+20
    assert len(drawn) == cards + per_schedule + capacity + growing
    for width, shapes, label in drawn:
        assert width > 150
        assert shapes > 0
        assert re.search(r"n = \d|in brackets", label), label


def shown(value, deviation, signed):
    text = f"{value:{'+' if signed else ''}.2f}".replace("-", "\u2212")
    return text + (f" ± {deviation:.2f}" if deviation is not None else "")


def test_cells_of_the_table_are_those_of_results_json(page, site):
    folder, _ = site
    expected = {}
    for path in (folder / "runs").glob("*/results.json"):
        run = json.loads(path.read_text())
        first = statistics.mean(a for a in run["acc"][0] if a is not None)
        columns = {
            "everyone at the end": run["acc_end_mean"], "PA": run["pa_mean"], "its change": run["ri_cumulative"],
            "first batch": first,
        }  # fmt: skip
        for column, value in columns.items():
            expected.setdefault((run["schedule"], run["method"], column), []).append(value)
    cells = page.eval_on_selector_all(
        "table[data-table=standings] td[data-value]",
        "all => all.map(td => [td.closest('.group').querySelector('h2, summary').textContent,"
        " td.parentElement.dataset.method, td.dataset.column, td.dataset.value, td.textContent])",
    )
    found = {(heading.split()[1], method, column): (float(v), text) for heading, method, column, v, text in cells}
    contest = [key for key in expected if key[1] != "pfeddsh-hyper-gate"]
    assert len(contest) == 3 * 4 * 11
    for key in contest:
        values = expected[key]
        deviation = statistics.stdev(values) if len(values) > 1 else None
        assert found[key][0] == pytest.approx(statistics.mean(values), abs=1e-9), key
        assert found[key][1] == shown(statistics.mean(values), deviation, key[2] in ("PA", "its change")), key


def test_the_heat_map_holds_the_accuracy_of_every_batch_after_every_step(page, site):
    folder, _ = site
    run = json.loads((folder / "runs" / "hr-80+4x5" / "results.json").read_text())
    rows = page.evaluate(
        "() => [...document.querySelectorAll('.card')]"
        ".filter(card => / ?hr n/.test(card.querySelector('h3').textContent.slice(1)))"
        ".map(card => [...card.querySelectorAll('.heat tbody tr')].map(tr => [...tr.querySelectorAll('td')]"
        ".map(td => td.dataset.value ? Number(td.dataset.value) : null)))[1]"
    )
    for batch, row in enumerate(rows, 1):
        for step, value in enumerate(row, 1):
            members = [run["acc"][step - 1][k] for k, joined in enumerate(run["batch"]) if joined == batch]
            assert value == (pytest.approx(statistics.mean(members)) if step >= batch else None)


def test_nothing_is_wider_than_a_phone(browser, site):
    folder, _ = site
    context = browser.new_context(viewport={"width": 375, "height": 800}, color_scheme="dark")
    page = context.new_page()
    page.goto((folder / "page.html").as_uri())
    assert page.evaluate("document.documentElement.scrollWidth") <= 375
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(20, 23, 26)"
    context.close()


def test_links_lead_to_how_every_figure_is_repeated(page):
    dangling = page.evaluate(
        "() => [...document.querySelectorAll('a[href^=\"#\"]')]"
        ".filter(a => !document.getElementById(a.hash.slice(1))).length"
    )
    assert dangling == 0
    assert page.locator(".cited a").count() > 36
    text = page.locator("#repeat").text_content()
    assert (
        "for seed in 0 1 2; do pfeddsh run --dataset cifar10 --method fedper --schedule 80+20 --seed $seed; done"
        in text
    )
    assert "torch 2.13.0" in text
    assert "revision abc" in text


def test_warnings_stand_at_the_top_of_the_page(page):
    text = page.locator(".warning").text_content()
    assert "half is not finished and was left out" in text
    assert "seeds are missing for fedavg (1, 2)" in text


def test_every_method_has_a_colour_of_its_own():
    assert registry.METHODS.keys() <= KNOWN.keys() and len(set(KNOWN.values())) == len(KNOWN)
    for colours in (PALETTE, LIGHT, DARK):
        assert len(set(colours.values())) == len(colours) == len(HUES) * len(SHADES)
    assert variables().count("--vermilion-1: ") == 2, "on light and on dark"


def test_names_in_the_first_picture_do_not_cover_each_other():
    draw = random.Random(0)
    names = [name for name in registry.METHODS if len(name) < 18][:24]
    labels = [(draw.gauss(50, 20), draw.gauss(50, 20), name, "normal") for name in names]
    with styled():
        axes = canvas(3.0).subplots()
        axes.set(xlim=(0, 100), ylim=(0, 100))
        boxes = first._label(axes, labels)
    pairs = list(combinations(boxes, 2))
    assert len(pairs) == 276 and sum(first._overlap(*pair) for pair in pairs) == 0


def test_headings_are_words_and_a_sign_stays_with_its_number(tmp_path):
    write(tmp_path / "run", results(rounds_first=50, rounds_later=9, lr=0.5))
    build([tmp_path / "run"], tmp_path / "page.html", "report")
    text = (tmp_path / "page.html").read_text()
    assert "50 rounds for the first batch, 9 for later ones" in text and "rate 0.5" in text
    heading = re.search("<h1>(.*)</h1>", text)[1]
    assert "\u00a0%" in heading and " %" not in heading


@pytest.fixture(scope="module")
def one(tmp_path_factory):
    """The page of a single run."""
    folder = tmp_path_factory.mktemp("one")
    write(folder / "run", results("pfeddsh", "80+4x5"))
    build([folder / "run"], folder / "page.html", "report")
    return folder / "page.html"


@pytest.fixture(scope="module")
def dozen(tmp_path_factory):
    """The page of twelve runs."""
    folder = tmp_path_factory.mktemp("dozen")
    for method in METHODS:
        write(folder / method, results(method))
    build([folder], folder / "page.html", "report")
    return folder / "page.html"


def test_the_page_of_a_single_run_tests_nothing(one):
    text = one.read_text()
    assert "p-value" not in text and not re.search(r"\bp over \d+ clients", text)
    assert 'data-table="tests"' not in text and "only method here" in text


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_axe_finds_no_serious_problem(browser, one, dozen, width, scheme):
    """The pages of one run and of twelve, all unfolded. tests/axe.py looks at any other."""
    context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme)
    page = context.new_page()
    page.goto(one.as_uri())
    unfold(page)
    assert serious(page) == set()
    if scheme == "light":
        page.evaluate("document.body.append(new Image())")
        assert serious(page) == {"image-alt"}, "axe looks at the page"
    page.goto(dozen.as_uri())
    unfold(page)
    assert serious(page) == set()
    context.close()


def test_tables_are_whole_without_script(browser, site):
    folder, _ = site
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto((folder / "page.html").as_uri())
    table = page.locator("table[data-table=standings]").first
    assert table.locator("tbody tr").count() == 11 and table.locator("th button").count() == 0
    assert table.locator("th").nth(2).inner_text() == "everyone at the end %"
    context.close()


def test_names_from_a_file_cannot_become_markup(browser, tmp_path):
    write(tmp_path / "run", results() | {"method": "<img src=x onerror=alert(1)>", "dataset": "<b>data</b>"})
    build([tmp_path], tmp_path / "page.html", "report")
    page = browser.new_page()
    page.goto((tmp_path / "page.html").as_uri())
    assert page.locator("img, td b").count() == 0
    assert "<img src=x onerror=alert(1)>" in page.locator("table[data-table=standings]").first.text_content()
    page.close()


def test_replayed_images_are_shown_from_the_checkpoint_and_their_absence_is_said(reference, tmp_path):
    options = {"images": 40, "iterations": 2, "hidden": 64, "replay": "common"}
    run = reference("pfeddsh-hyper", schedule="6+2", rounds_first=2, rounds_later=1, options=options)
    build([run.out], tmp_path / "page.html", "report")
    text = (tmp_path / "page.html").read_text()
    assert text.count('<img src="data:image/png;base64,') == 1
    assert "40 of the 40 synthetic images of the server" in text
    path = write(tmp_path / "alone", run.results)
    build([path], tmp_path / "page.html", "report")
    text = (tmp_path / "page.html").read_text()
    assert "<img" not in text
    assert "no run folder with a readable state/ was given" in text


def test_a_full_disk_is_said_and_the_page_before_is_kept(tmp_path):
    write(tmp_path / "run", results())
    out = tmp_path / "page.html"
    out.write_text("the page before")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, hard))
    try:
        with pytest.raises(UserError, match=r"cannot write .*page\.html: .*free some space"):
            build([tmp_path / "run"], out, "report")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert out.read_text() == "the page before"
    assert (tmp_path / "page-tables" / "standings.csv").exists()
    assert not list(tmp_path.glob(".*.tmp"))


def command(monkeypatch, capsys, *arguments):
    monkeypatch.setattr(sys, "argv", ["pfeddsh", "report", *map(str, arguments)])
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)
    with pytest.raises(SystemExit) as end:
        cli.main()
    return end.value.code or 0, capsys.readouterr()


def test_the_command_makes_the_page_and_says_what_it_left_out(tmp_path, monkeypatch, capsys):
    write(tmp_path / "runs" / "good", results())
    bad = write(tmp_path / "runs" / "bad", "{}")
    out = tmp_path / "new" / "page.html"
    code, output = command(monkeypatch, capsys, tmp_path / "runs", "--out", out)
    assert code == 0
    assert f"warning: {bad} was left out" in output.out
    assert f"1 run in {out}" in output.out
    assert out.exists()


def test_the_command_explains_mistakes(tmp_path, monkeypatch, capsys):
    code, output = command(monkeypatch, capsys, tmp_path / "none", "--out", tmp_path / "page.html")
    assert code == 2
    assert output.err.startswith("error: no readable run")
    write(tmp_path / "run", results())
    code, output = command(monkeypatch, capsys, tmp_path / "run", "--out", tmp_path)
    assert code == 2
    assert "is a folder; give the page a name" in output.err
    (tmp_path / "file").write_text("")
    code, output = command(monkeypatch, capsys, tmp_path / "run", "--out", tmp_path / "file" / "page.html")
    assert code == 2
    assert "cannot write to" in output.err


def test_replayed_images_need_not_be_square():
    source = images._encode(np.zeros((13, 1, 9, 12), np.float32))
    with Image.open(io.BytesIO(base64.b64decode(source.partition(",")[2]))) as sheet:
        assert sheet.size == (12 * (12 + 2), 2 * (9 + 2)), "twelve a row, two pixels between them"
