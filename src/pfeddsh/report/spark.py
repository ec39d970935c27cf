"""The small line charts of the cards, written by hand: there is one per method and schedule, and Matplotlib is slow."""

from collections.abc import Sequence
from html import escape

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 300, 170, 34, 12, 12, 32
DASHES = ("", "6 3", "2 3", "8 3 2 3")


def chart(matrix: Sequence[Sequence[float | None]], low: float, high: float, alt: str) -> str:
    """Accuracy of each batch (row) over steps (columns); the first is thick, every line starts with its number."""
    steps, span = len(matrix), max(high - low, 1.0)
    low, high = low - 0.06 * span, high + 0.1 * span

    def x(step: int) -> float:
        return LEFT + 10 + (WIDTH - LEFT - RIGHT - 20) * (step / max(1, steps - 1))

    def y(value: float) -> float:
        return TOP + (HEIGHT - TOP - BOTTOM) * (high - value) / (high - low)

    parts = [f'<svg class="spark" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(alt)}">']
    for tick in _ticks(low, high):
        parts.append(f'<line class="rule" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(tick):.1f}" y2="{y(tick):.1f}"/>')
        parts.append(f'<text x="{LEFT - 5}" y="{y(tick) + 3.5:.1f}" text-anchor="end">{tick:g}</text>')
    for step in range(steps):
        parts.append(f'<text x="{x(step):.1f}" y="{HEIGHT - 17}" text-anchor="middle">{step + 1}</text>')
    parts.append(f'<text x="{WIDTH - RIGHT}" y="{HEIGHT - 3}" text-anchor="end">step; accuracy in %</text>')
    for batch in reversed(range(steps)):
        points = [(x(step), y(a)) for step, a in enumerate(matrix[batch]) if a is not None]
        if not points:
            continue
        dash, kind = DASHES[batch % len(DASHES)], "first" if batch == 0 else "later"
        drawn = " ".join(f"{px:.1f},{py:.1f}" for px, py in points)
        parts.append(f'<polyline class="{kind}" stroke-dasharray="{dash}" points="{drawn}"/>')
        parts += [
            f'<circle class="{kind}" cx="{px:.1f}" cy="{py:.1f}" r="{3.2 if batch == 0 else 2.4}"/>'
            for px, py in points
        ]
        px, py = points[0]
        parts.append(f'<text class="name" x="{px - 6:.1f}" y="{py - 5:.1f}" text-anchor="middle">{batch + 1}</text>')
    return "".join([*parts, "</svg>"])


def _ticks(low: float, high: float) -> list[float]:
    """Three to six round numbers."""
    step = next(s for s in (1, 2, 5, 10, 20, 25, 50) if (high - low) / s <= 6)
    first = -(-low // step) * step
    return [first + i * step for i in range(7) if first + i * step <= high]
