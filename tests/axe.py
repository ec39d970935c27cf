"""What axe-core finds in a page that would keep people out. The tests look at small pages; for any others,

python tests/axe.py PAGE.html ...    # or addresses; wide and narrow, light and dark
"""

import shutil
import sys
from itertools import product
from pathlib import Path
from typing import Any

from conftest import lacking


def serious(page: Any) -> set[str]:
    """The rules that the page breaks, of the two gravest kinds."""
    try:
        from axe_playwright_python.sync_playwright import Axe
    except ModuleNotFoundError:
        lacking("needs the package axe-playwright-python")
    found = Axe().run(page).response["violations"]
    return {each["id"] for each in found if each["impact"] in ("serious", "critical")}


def main() -> None:
    from playwright.sync_api import sync_playwright

    bad = 0
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for place, width, scheme in product(sys.argv[1:], (1280, 390), ("light", "dark")):
            context = browser.new_context(viewport={"width": width, "height": 800})
            page = context.new_page()
            page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
            page.goto(place if "://" in place else Path(place).absolute().as_uri())
            found = serious(page)
            bad += len(found)
            print(f"{place} {width} {scheme}: {', '.join(sorted(found)) or 'nothing serious'}", flush=True)
            context.close()
        browser.close()
    sys.exit(bad > 0)


if __name__ == "__main__":
    main()
