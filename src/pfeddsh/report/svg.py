"""Matplotlib figures as SVG inside the page: its fonts, and colours that follow light and dark."""

import colorsys
import io
import re
from contextlib import AbstractContextManager
from dataclasses import dataclass
from html import escape
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

INK, FAINT = "#0a0b0c", "#8a8b8c"  # placeholders, replaced by the page's own
HUES = {  # in figures, and as the page shows them on light and on dark; most are Okabe and Ito's
    "blue": ("#0072b2", "#0072b2", "#4da6e0"), "vermilion": ("#d55e00", "#d55e00", "#f0803c"),
    "green": ("#009e73", "#009e73", "#2fc498"), "purple": ("#cc79a7", "#b8588c", "#dd92bb"),
    "orange": ("#e69f00", "#c98500", "#eeb33b"), "sky": ("#56b4e9", "#3a9bd4", "#7cc7f2"),
    "teal": ("#00828f", "#00828f", "#3fc0cc"), "grey": ("#777879", "#6c7378", "#a0a7ad"),
}  # fmt: skip
SHADES = ((0, 1.0), (-22, 0.72), (20, 0.9), (-10, 1.2), (8, 0.6), (30, 1.1))  # degrees and lightness beside a hue's own


def shade(code: str, i: int) -> str:
    """A neighbour of a colour, for methods of one family: each has its own."""
    red, green, blue = (int(code[at : at + 2], 16) / 255 for at in (1, 3, 5))
    hue, light, full = colorsys.rgb_to_hls(red, green, blue)
    turn, factor = SHADES[i]
    mixed = colorsys.hls_to_rgb((hue + turn / 360) % 1, min(0.85, light * factor), full)
    return "#" + "".join(f"{round(255 * part):02x}" for part in mixed)


def _shades(at: int) -> dict[str, str]:
    return {
        f"{name}-{i}" if i else name: shade(codes[at], i) for name, codes in HUES.items() for i in range(len(SHADES))
    }


PALETTE, LIGHT, DARK = map(_shades, range(3))
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


def variables() -> str:
    """The palette as the page's style sheet has it."""
    light, dark = ("".join(f" --{name}: {code};" for name, code in each.items()) for each in (LIGHT, DARK))
    return f":root {{{light} }}\n@media (prefers-color-scheme: dark) {{ :root {{{dark} }} }}\n"


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
