"""Matplotlib figures as SVG inside the page: its fonts, and colours that follow light and dark."""

import io
import re
from contextlib import AbstractContextManager
from dataclasses import dataclass
from html import escape
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

INK, FAINT = "#0a0b0c", "#8a8b8c"  # placeholders, replaced by the page's own
PALETTE = {  # Okabe and Ito; told apart by colour-blind people, and each line has a marker and a dash of its own too
    "blue": "#0072b2", "vermilion": "#d55e00", "green": "#009e73", "purple": "#cc79a7", "orange": "#e69f00",
    "sky": "#56b4e9", "grey": "#777879",
}  # fmt: skip
STYLE: Any = {
    "svg.fonttype": "none", "font.size": 8.5, "axes.titlesize": 8.5, "axes.titlelocation": "left",
    "text.color": INK, "axes.labelcolor": INK, "axes.titlecolor": INK, "xtick.labelcolor": INK, "ytick.labelcolor": INK,
    "axes.edgecolor": FAINT, "xtick.color": FAINT, "ytick.color": FAINT, "grid.color": FAINT, "grid.alpha": 0.25,
    "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "legend.frameon": False,
    "figure.facecolor": "none", "axes.facecolor": "none", "savefig.facecolor": "none", "lines.linewidth": 1.6,
    "lines.markersize": 4.5, "axes.axisbelow": True, "hatch.color": INK, "hatch.linewidth": 0.5,
}  # fmt: skip
WIDTH = 3.7  # inches: the width of a phone, so that figures stand beside each other or below


@dataclass(frozen=True)
class Drawing:
    """A picture with what a reader needs to know of it."""

    name: str
    svg: str
    caption: str
    runs: tuple[str, ...]  # ids of the cells it was made from


def styled() -> AbstractContextManager[None]:
    return mpl.rc_context(STYLE)


def canvas(height: float) -> Figure:
    return Figure(figsize=(WIDTH, height), layout="constrained")


def draw(figure: Figure, name: str, title: str, caption: str, runs: tuple[str, ...]) -> Drawing:
    """One <svg>, the same bits each time, with a description for those who cannot see it."""
    out = io.StringIO()
    style: Any = {**STYLE, "svg.hashsalt": name}
    with mpl.rc_context(style):
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    text = out.getvalue()
    start = text.index("<svg")
    body = re.sub(r"<metadata>.*?</metadata>", "", text[text.index(">", start) + 1 :], flags=re.S)
    box = re.search(r'viewBox="[^"]*"', text[start:])
    head = f'<svg {box[0] if box else ""} role="img" aria-label="{escape(f"{title}. {caption}")}">'
    body = re.sub(r"\s*\n\s*", "\n", body).replace(INK, "currentColor").replace(FAINT, "var(--faint)")
    for colour, code in PALETTE.items():
        body = body.replace(code, f"var(--{colour})")
    return Drawing(name, head + body.replace("xlink:href", "href"), caption, runs)
