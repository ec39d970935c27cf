"""The demonstration: its sites share no image, and its story is told once, in order, from the status alone."""

from pathlib import Path
from typing import Any

import numpy as np
from status_sample import client, sample

from pfeddsh.live.coordinator.config import load
from pfeddsh.live.demo import LATE, SITES, prepare
from pfeddsh.live.story import Story


def test_every_site_has_images_of_its_own_most_of_its_own_digits(tmp_path: Path) -> None:
    prepare(tmp_path / "data", tmp_path / "server")
    assert load(tmp_path / "server").steps == 2
    seen: set[bytes] = set()
    for name, (images, own) in SITES.items():
        with np.load(tmp_path / "data" / f"{name}.npz") as data:
            pixels = {image.tobytes() for image in np.concatenate([data["x_train"], data["x_test"]])}
            assert len(data["y_train"]) == images and not pixels & seen
            assert 0.6 < np.isin(data["y_train"], list(own)).mean() < 0.8
            seen |= pixels


def status(**changes: Any) -> dict[str, Any]:
    unknown = dict.fromkeys(("accuracy", "accuracy_first", "accuracy_zero_shot", "accuracy_alone"))
    clients = [client(0, "cork", 1, "served", **unknown), client(1, "essen", 2, "training", **unknown)]
    return sample() | {"clients": clients, "ri": [], "round": 0} | changes


def test_the_story_follows_the_status() -> None:
    said: list[str] = []
    story = Story(said.append, LATE)
    late = status(step=2)
    late["clients"][0] |= {"accuracy": 80.0, "accuracy_first": 80.0, "accuracy_alone": 75.0}
    served = {**late, "clients": [late["clients"][0], late["clients"][1] | {"accuracy_zero_shot": 90.0}]}
    over = {**served, "ri": [None, 6.7], "phase": "done", "clients": [
        served["clients"][0] | {"accuracy": 86.7, "offer": "accepted"},
        served["clients"][1] | {"accuracy": 93.0, "accuracy_first": 93.0, "accuracy_alone": 87.0},
    ]}  # fmt: skip
    for told in (status(), status(round=1, step=1), late, late, served, over, over):
        story.tell(told)
    assert [sentence.split(".")[0].split(":")[0] for sentence in said] == [
        "Step 1",
        "Cork is served",
        "Essen is served at once, before its first round",
        "Essen after its step",
        "Cork, which was here before, is offered the new version, finds it better by its own images and accepts",
    ]
    assert "80 % becomes 87 % (+6.7 points)" in said[-1] and "training alone ends at 87 %" in said[-2]
    declined = Story(said.append, LATE)
    declined.tell({**over, "clients": [over["clients"][0] | {"offer": "declined"}]})
    assert "keeps its model to the bit" in said[-1]
