"""Draw accuracy against epsilon from results/privacy.csv, for docs/privacy.md: `python results/privacy_figure.py`."""

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from privacy_rows import METHODS, alone, level, levels
from runs import HERE, rows
from wording import NAMES


def draw(protocol: str, out: Path) -> None:
    """A colour a method, a line a clip."""
    figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
    for colour, method in zip(("C0", "C1", "C2"), METHODS, strict=True):
        clips = dict.fromkeys(one.clip for one in levels(protocol) if one.noise)
        for style, clip in zip(("-o", "--s", ":^"), clips, strict=False):
            own = [one for one in levels(protocol) if one.clip == clip and one.epsilon]
            reached = [one.accuracy[method] for one in own]
            axes.plot(
                [one.epsilon for one in own], reached, style, color=colour, label=f"{NAMES[method]}, clip {clip:g}"
            )
        without = level(protocol).accuracy[method]
        axes.axhline(without, color=colour, lw=0.8, label=f"{NAMES[method]}, no privacy")
    axes.axhline(alone(protocol), color="grey", ls="--", label="training alone")
    axes.set(xscale="log", xlabel="epsilon (delta = 1e-5); less is more private", ylabel="everyone at the end, %")
    axes.set_title(protocol)
    axes.legend(fontsize=7)
    figure.savefig(out, dpi=130)


def main() -> None:
    for protocol in dict.fromkeys(run["protocol"] for run in rows("privacy.csv")):
        draw(protocol, HERE.parent / "docs" / f"privacy-{protocol}.png")


if __name__ == "__main__":
    main()
