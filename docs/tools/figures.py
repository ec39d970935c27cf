"""Draw the figures of docs/concepts.md as SVG: `python docs/tools/figures.py`.

They are sketches; no number is measured. Colours are variables: as a picture of its own a figure follows the reader's
light or dark preference, and within a page of the site it follows the page (docs/assets/extra.css).
"""

from pathlib import Path
from xml.sax.saxutils import escape

FIGURES = Path(__file__).parents[1] / "figures"
WIDTH = 480
# Folders of src/pfeddsh from top to bottom, with what is in them; imports point downwards.
FLOORS = (
    (("cli.py", "what a user types", "full"),),
    (("compare/", "many runs", "box"), ("live/", "sites on Flower", "box"), ("report/", "pages, tables", "box")),
    (("federation/", "steps, rounds, engines", "full"), ("results/, storage/", "measures, checkpoints", "box")),
    (("methods/", "one file a method", "full"),),
    (("mechanisms/", "common model, prior, guard, masks, replay", "box"),),
    (("models/", "networks: flat vectors", "box"), ("data/", "images to clients", "box")),
)
STYLE = """
.figure{--ink:#1f2328;--muted:#5b6470;--blue:#2463a8;--orange:#b4530b;--soft:#dbe8f6;--paper:#ffffff}
@media(prefers-color-scheme:dark){
.figure{--ink:#e6e8eb;--muted:#a9b1bc;--blue:#8dbcf0;--orange:#f2a765;--soft:#23405f;--paper:#1b1e24}}
.figure text{font:15px system-ui,sans-serif;fill:var(--ink)}
.figure .small{font-size:13px;fill:var(--muted)}
.figure .blue{fill:var(--blue)} .figure .orange{fill:var(--orange)}
.figure .line{stroke:var(--muted);fill:none;stroke-width:1.5}
.figure .box{stroke:var(--muted);fill:var(--paper);stroke-width:1.5}
.figure .full{stroke:var(--blue);fill:var(--soft);stroke-width:1.5}
.figure .strong{stroke:var(--blue);fill:none;stroke-width:2.5}
.figure .weak{stroke:var(--orange);fill:none;stroke-width:2.5}
.figure .head{fill:var(--muted)}
"""


def text(x: float, y: float, words: str, kind: str = "", anchor: str = "middle") -> str:
    return f'<text x="{x}" y="{y}" class="{kind}" text-anchor="{anchor}">{escape(words)}</text>'


def box(x: float, y: float, width: float, height: float, kind: str = "box") -> str:
    return f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="6" class="{kind}"/>'


def arrow(x1: float, y1: float, x2: float, y2: float, kind: str = "line") -> str:
    """A line with a head; straight along one of the axes."""
    dx, dy = (x2 > x1) - (x2 < x1), (y2 > y1) - (y2 < y1)
    left, right = (x2 - 8 * dx + 4 * dy, y2 - 8 * dy + 4 * dx), (x2 - 8 * dx - 4 * dy, y2 - 8 * dy - 4 * dx)
    points = " ".join(f"{x},{y}" for x, y in ((x2, y2), left, right))
    return f'<path d="M{x1} {y1}L{x2} {y2}" class="{kind}"/><polygon points="{points}" class="head"/>'


def path(points: list[tuple[float, float]], kind: str) -> str:
    return f'<path d="M{" L".join(f"{x} {y}" for x, y in points)}" class="{kind}"/>'


def onboarding() -> tuple[str, int, list[str]]:
    parts = []
    for step in (1, 2, 3):
        left = 120 + 120 * (step - 1)
        parts.append(text(left + 52, 24, f"step {step}"))
        for batch in range(1, step + 1):
            top = 40 + 56 * (batch - 1)
            parts.append(box(left, top, 104, 42, "full" if batch == step else "box"))
            parts.append(text(left + 52, top + 26, "trains" if batch == step else "is served"))
    for batch, size in ((1, "80 clients"), (2, "10 more"), (3, "10 more")):
        top = 40 + 56 * (batch - 1)
        parts += [text(8, top + 18, f"batch {batch}", anchor="start"), text(8, top + 36, size, "small", "start")]
    parts.append(text(8, 226, "Only the batch that joins trains. The others are never retrained.", "small", "start"))
    return "Batches join in steps; only the batch that joins trains.", 240, parts


def adaptation() -> tuple[str, int, list[str]]:
    bars = [("training alone", 90, "box"), ("served at once", 140, "full"), ("after its step", 160, "full")]
    parts, base = [], 210
    for number, (name, height, kind) in enumerate(bars):
        left = 50 + 140 * number
        parts += [box(left, base - height, 90, height, kind), text(left + 45, base + 20, name)]
    parts += [
        path([(30, base), (450, base)], "line"),
        path([(140, 120), (470, 120)], "line"),
        arrow(235, 120, 235, 70),
        text(235, 60, "zero-shot PA", "blue"),
        arrow(440, 120, 440, 50),
        text(448, 92, "PA", "blue", "start"),
        text(8, 24, "accuracy of a newcomer", "small", "start"),
    ]
    return "PA is what a newcomer gains over training alone.", 240, parts


def improvement() -> tuple[str, int, list[str]]:
    across = [60, 170, 280, 390]
    parts = [text(x, 214, f"step {number}", "small") for number, x in enumerate(across, 1)]
    parts += [
        path([(40, 196), (410, 196)], "line"),
        path(list(zip(across, (100, 86, 74, 64), strict=True)), "strong"),
        path(list(zip(across, (100, 100, 100, 100), strict=True)), "line"),
        path(list(zip(across, (100, 126, 152, 176), strict=True)), "weak"),
        text(400, 60, "RI > 0", "blue", "start"),
        text(400, 105, "RI = 0", "", "start"),
        text(400, 180, "RI < 0", "orange", "start"),
        text(8, 24, "accuracy of the first batch, which is not retrained", "small", "start"),
    ]
    return "RI is how existing clients change when others join: they gain, keep, or lose.", 224, parts


def versions() -> tuple[str, int, list[str]]:
    left = (110, 235, 360)
    parts = [text(8, 44, "common", anchor="start"), text(8, 62, "model", anchor="start")]
    for number, x in enumerate(left, 1):
        parts += [box(x, 26, 96, 44, "full"), text(x + 48, 53, f"version {number}")]
    parts += [arrow(x + 96, 48, x + 127, 48) for x in left[:2]]
    clients = [("client A", (0, 1, 2)), ("client B", (0, 2)), ("client C", (0,))]
    for row, (name, taken) in enumerate(clients):
        y = 104 + 36 * row
        parts += [text(8, y + 5, name, anchor="start"), path([(110, y), (456, y)], "line")]
        for number in range(3):
            cx, kind = left[number] + 48, "full" if number in taken else "box"
            parts.append(f'<circle cx="{cx}" cy="{y}" r="9" class="{kind}"/>')
            parts += [text(cx - 14, y - 6, "declined", "small", "end")] if number not in taken else []
    parts.append(text(8, 222, "Filled: the client took the version. Client C still has version 1.", "small", "start"))
    return "Every step leaves a version of the common model; each client has the last it took.", 236, parts


def offers() -> tuple[str, int, list[str]]:
    parts = [
        box(8, 40, 130, 110, "full"),
        text(73, 88, "coordinator"),
        text(73, 108, "new version", "small"),
        box(262, 20, 210, 150),
        text(367, 46, "existing client"),
        text(367, 82, "new version", "small"),
        text(367, 106, "+ its own label prior", "small"),
        text(367, 146, "= the offer", "blue"),
        arrow(138, 76, 262, 76),
        text(200, 66, "weights", "small"),
        arrow(262, 124, 138, 124),
        text(200, 142, "yes or no", "small"),
        text(8, 202, "Label prior and images stay at the client.", "small", "start"),
    ]
    return "The coordinator sends a version; the client makes the offer from it and answers yes or no.", 216, parts


def guard() -> tuple[str, int, list[str]]:
    parts = [
        box(8, 20, 140, 44),
        text(78, 47, "current model"),
        box(8, 110, 140, 44, "full"),
        text(78, 137, "offer"),
        box(186, 55, 140, 64),
        text(256, 82, "own images,"),
        text(256, 102, "shifted, flipped"),
        path([(148, 42), (167, 42), (167, 76)], "line"),
        arrow(167, 76, 186, 76),
        path([(148, 132), (167, 132), (167, 98)], "line"),
        arrow(167, 98, 186, 98),
        arrow(326, 87, 360, 87),
        box(360, 55, 112, 64),
        text(416, 82, "keep the"),
        text(416, 102, "lower loss"),
        text(8, 190, "A forward pass: no training. A client that declines keeps", "small", "start"),
        text(8, 208, "its model to the bit.", "small", "start"),
    ]
    return "The guard compares the current model and the offer on the client's own images.", 220, parts


def house() -> tuple[str, int, list[str]]:
    parts = []
    for row, rooms in enumerate(FLOORS):
        top, width = 10 + 66 * row, (464 - 12 * (len(rooms) - 1)) / len(rooms)
        for number, (name, words, kind) in enumerate(rooms):
            left = 8 + number * (width + 12)
            parts += [box(left, top, width, 48, kind), text(left + width / 2, top + 21, name)]
            parts.append(text(left + width / 2, top + 39, words, "small"))
        parts += [arrow(240, top + 48, 240, top + 66)] if row + 1 < len(FLOORS) else []
    return "The folders of the package, from the command line down to models and data.", 400, parts


DRAWN = {
    "house": house,
    "onboarding": onboarding,
    "pa": adaptation,
    "ri": improvement,
    "versions": versions,
    "offers": offers,
    "guard": guard,
}


def svg(name: str) -> str:
    """A whole figure; its title is what it says to those who cannot see it."""
    title, height, parts = DRAWN[name]()
    head = f'<svg xmlns="http://www.w3.org/2000/svg" class="figure" viewBox="0 0 {WIDTH} {height}" role="img"'
    lines = [f'{head} aria-label="{escape(title)}">', f"<style>{STYLE}</style>", *parts, "</svg>"]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    FIGURES.mkdir(exist_ok=True)
    for name in DRAWN:
        (FIGURES / f"{name}.svg").write_text(svg(name))
