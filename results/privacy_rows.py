"""What docs/privacy.md says of its runs: accuracy with each clip and noise, and how much an attack finds by chance."""

from statistics import mean
from typing import NamedTuple

from runs import rows
from scipy import stats
from wording import NAMES

METHODS = ("pfeddsh", "fedavg", "fedavg-prior")
INVERSION = ("psnr", "ssim", "psnr with the nearest", "nearer to itself")


class Level(NamedTuple):
    """A clip and a noise, 0 for none, and what each method reaches with them: the mean of its seeds."""

    clip: float
    noise: float
    epsilon: float | None
    accuracy: dict[str, float]


def levels(protocol: str) -> list[Level]:
    """The rows of its table."""
    runs, found = rows("privacy.csv", protocol=protocol), []
    for clip, noise in dict.fromkeys((run["clip"], run["noise"]) for run in runs):
        own = [run for run in runs if (run["clip"], run["noise"]) == (clip, noise)]
        epsilon = max((float(run["epsilon"]) for run in own if run["epsilon"]), default=None)
        reached = {name: mean(float(run["accuracy"]) for run in own if run["method"] == name) for name in METHODS}
        found.append(Level(float(clip), float(noise), epsilon, reached))
    return found


def level(protocol: str, clip: float = 0, noise: float = 0) -> Level:
    """Asking for one that was not run is a mistake."""
    found = [one for one in levels(protocol) if (one.clip, one.noise) == (clip, noise)]
    if not found:
        raise LookupError(f"no run of {protocol} with clip {clip} and noise {noise} in privacy.csv")
    return found[0]


def change(protocol: str, clip: float, noise: float = 0, method: str = "pfeddsh") -> float:
    """Points, from no clip and no noise."""
    return level(protocol, clip, noise).accuracy[method] - level(protocol).accuracy[method]


def alone(protocol: str) -> float:
    """Local-only training: what a client has without anybody else."""
    return mean(float(run["alone"]) for run in rows("privacy.csv", protocol=protocol, method="pfeddsh", clip="0"))


def uploads(protocol: str) -> int:
    """Of the client that had most."""
    return max(int(run["uploads"]) for run in rows("privacy.csv", protocol=protocol) if run["uploads"])


def said(epsilon: float | None) -> str:
    return "none" if epsilon is None else f"{epsilon:,.0f}" if epsilon > 20 else f"{epsilon:.3g}"


def table(protocol: str) -> str:
    lines = ["| clip | noise | epsilon, delta = 1e-5 | " + " | ".join(f"{NAMES[name]}, %" for name in METHODS) + " |"]
    lines.append("|---:|---:|---:|" + "---:|" * len(METHODS))
    for clip, noise, epsilon, reached in levels(protocol):
        cells = [f"{clip:g}" if clip else "none", f"{noise:g}" if noise else "none", said(epsilon)]
        lines.append(f"| {' | '.join(cells + [f'{reached[name]:.1f}' for name in METHODS])} |")
    seeds = sorted({run["seed"] for run in rows("privacy.csv", protocol=protocol)})
    about = f"At most {uploads(protocol)} uploads a client; training alone gives {alone(protocol):.1f} %"
    return "\n".join(
        [*lines, "", f"{about}; {f'means of {len(seeds)} seeds' if len(seeds) > 1 else f'seed {seeds[0]}'}."]
    )


def useless(protocol: str) -> float:
    """The largest epsilon up to which all methods are worse than training alone; 0 if one never is."""
    found = 0.0
    for one in sorted((one for one in levels(protocol) if one.epsilon), key=lambda one: one.epsilon or 0):
        if max(one.accuracy.values()) >= alone(protocol):
            break
        found = one.epsilon or 0
    return found


def ahead(protocol: str, other: str) -> str:
    """In how many of the rows with noise pFedDSH is."""
    noised = [one.accuracy for one in levels(protocol) if one.noise]
    return f"{sum(one['pfeddsh'] > one[other] for one in noised)} of {len(noised)}"


def inverted(upload: str, sent: str) -> dict[str, float]:
    """What the attack found in these uploads: means over clients."""
    found = rows("inversion.csv", effort="1", **{"upload of": upload, "sent": sent})
    return {column: mean(float(run[column]) for run in found) for column in INVERSION}


def by_chance(trained: int, others: int, alarms: float = 0.01) -> tuple[float, float, float, float]:
    """Between which AUCs, and between which shares found (%), a guess lies 19 times of 20.

    The threshold lies at an image of others, the one before which there are as many as false alarms are allowed.
    """
    spread = 1.96 * ((trained + others + 1) / (12 * trained * others)) ** 0.5
    rank = int(alarms * others) + 1
    low, high = stats.betabinom(trained, rank, others - rank + 1).ppf([0.025, 0.975])
    return 0.5 - spread, 0.5 + spread, 100 * low / trained, 100 * high / trained
