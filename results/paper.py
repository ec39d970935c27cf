"""The technical report as a page of its own, and as PDF where a headless Chromium is there: `python results/paper.py`.

Writes dist/technical-report.html, figures inside, and dist/technical-report.pdf.
"""

import base64
import re
from pathlib import Path

from markdown import markdown

ROOT = Path(__file__).parents[1]
STYLE = (
    "body{font:11pt/1.45 Georgia,serif;max-width:46em;margin:2em auto;padding:0 1em}table{border-collapse:collapse;"
    "font-size:8.5pt}td,th{border:1px solid #bbb;padding:.2em .5em}img{max-width:100%}pre{background:#eee;padding:1em}"
)


def page(text: str) -> str:
    """One file: figures are part of it."""

    def inline(match: re.Match[str]) -> str:
        return f"data:image/png;base64,{base64.b64encode((ROOT / 'docs' / match[0]).read_bytes()).decode()}"

    body = markdown(text, extensions=["tables"])
    body = re.sub(r'(?<=src=")[\w-]+\.png', inline, body)
    title = text.partition("\n")[0].lstrip("# ")
    head = f'<meta charset="utf-8"><title>{title}</title><style>{STYLE}</style>'
    return f'<!doctype html><html lang="en"><head>{head}</head><body>{body}</body></html>'


def main() -> None:
    out = ROOT / "dist" / "technical-report.html"
    out.parent.mkdir(exist_ok=True)
    out.write_text(page((ROOT / "docs" / "technical-report.md").read_text()))
    print(out)
    try:
        from playwright.sync_api import Error, sync_playwright
    except ImportError:
        return
    try:
        with sync_playwright() as browsers:
            browser = browsers.chromium.launch()
            sheet = browser.new_page()
            sheet.goto(out.as_uri())
            sheet.pdf(path=out.with_suffix(".pdf"), format="A4", margin=dict.fromkeys(("top", "bottom"), "18mm"))
            browser.close()
        print(out.with_suffix(".pdf"))
    except Error as error:
        print(f"no PDF: {str(error).partition(chr(10))[0]}")


if __name__ == "__main__":
    main()
