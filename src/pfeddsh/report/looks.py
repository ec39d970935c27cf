"""One look a method: the same colour, dash and marker in every figure, on the page and in the documentation."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from matplotlib.figure import Figure

from pfeddsh.report.grouping import Cell, Group
from pfeddsh.report.svg import HUES, PALETTE, SHADES

FAMILIES = {  # as the paper groups them: neighbouring colours in a family, each with a marker and a dash
    "vermilion": ("fedavg", "fedavg-prior", "fedavg-prior-finetune", "ditto-prior", "ditto", "fedavg-finetune"),
    "green": ("fedper", "fedrep", "fedselect", "fedper-prior", "fedrep-prior"),
    "orange": ("pfedhn", "pefll", "odpfl-hn", "pfedhn-embed-only", "pfedhn-local-head"),
    "purple": ("fedweit", "fedclass", "hr", "fedclass-local-head", "hr-local-head"),
    "grey": ("joint", "local", "central", "local-prior"),
    "blue": ("pfeddsh", "pfeddsh-counted", "pfeddsh-unguarded", "pfeddsh-deviation", "pfeddsh-replay"),
    "sky": (
        "pfeddsh-hyper",
        "pfeddsh-hyper-gate",
        "pfeddsh-hyper-snapshot",
        "pfeddsh-hyper-unprotected",
        "pfeddsh-paper-projection-replay",
    ),
    "teal": (
        "pfeddsh-paper",
        "pfeddsh-paper-gate",
        "pfeddsh-paper-projection",
        "pfeddsh-paper-neither",
        "pfeddsh-paper-unmasked",
        "pfeddsh-paper-gate-replay",
    ),
}
DASHES = ("-", "--", ":", "-.", (0, (6, 1, 1, 1, 1, 1)))
MARKERS = ("o", "s", "^", "D", "v")
KNOWN = {name: (colour, i) for colour, names in FAMILIES.items() for i, name in enumerate(names)}
SPARE = [(hue, i) for i in range(len(SHADES)) for hue in HUES if (hue, i) not in KNOWN.values()]  # for the user's own


def looks(group: Group) -> dict[str, dict[str, Any]]:
    """Line styles by cell: a method has one colour everywhere, its variants too, with other dashes and markers."""
    foreign = {cell.variant.method for cell in group.cells} - KNOWN.keys()
    known = KNOWN | {name: SPARE[sum(name.encode()) % len(SPARE)] for name in foreign}
    styles, variants = {}, Counter[str]()
    for cell in group.cells:
        hue, i = known[cell.variant.method]
        colour = f"{hue}-{i}" if i else hue
        if cell.variant.settings:
            variants[cell.variant.method] += 1
            i += variants[cell.variant.method]
        width = 2.4 if cell.variant.method == "pfeddsh" else 1.4
        styles[cell.id] = {
            "color": PALETTE[colour], "linestyle": DASHES[i % len(DASHES)], "marker": MARKERS[i % len(MARKERS)],
            "linewidth": width,
        }  # fmt: skip
    return styles


def signs(group: Group) -> dict[str, tuple[str, str]]:
    """The same for tables: the colour's name and a letter that looks like the marker."""
    names = {code: name for name, code in PALETTE.items()}
    letters = dict(zip(MARKERS, "\u25cf\u25a0\u25b2\u25c6\u25bc", strict=True))
    return {key: (names[look["color"]], letters[look["marker"]]) for key, look in looks(group).items()}


def where(group: Group) -> str:
    return f"{group.setting.dataset}, {group.schedule}"


def seeds(cells: Sequence[Cell]) -> str:
    low, high = min(len(cell.runs) for cell in cells), max(len(cell.runs) for cell in cells)
    return f"n = {low} seed{'s' * (low > 1)}" if low == high else f"n = {low} to {high} seeds"


def ids(cells: Iterable[Cell]) -> tuple[str, ...]:
    return tuple(sorted((cell.id for cell in cells), key=lambda id: int(id[1:])))


def title(figure: Figure, text: str) -> None:
    figure.suptitle(text, x=0.01, ha="left", fontsize=9.5, fontweight="bold")


def label(cell: Cell, n: int) -> str:
    """Fit for an axis or a legend: every setting on a line of its own."""
    return cell.label.replace(", ", ",\n") + f" ({n})"
