"""The attacks of benchmarks/ measure what they say, and find what is there to be found."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
inversion, membership, robust = map(pytest.importorskip, ("inversion", "membership", "robust"))

BOX = (-1.0, 1.0)


@pytest.fixture
def images():
    return torch.rand(3, 1, 32, 32, generator=torch.Generator().manual_seed(0)) * 2 - 1


def test_likeness_is_one_for_the_same_image_and_falls_with_noise(images):
    one, noise = images[0], torch.randn(1, 32, 32, generator=torch.Generator().manual_seed(1))
    assert float(inversion.psnr(one, one, BOX)) > 90 and inversion.ssim(one, one, BOX) == pytest.approx(1, abs=1e-4)
    # of noise with standard deviation 0.2 in a range of 2: 20 log10(2 / 0.2)
    assert float(inversion.psnr(one, one + 0.2 * noise, BOX)) == pytest.approx(20, abs=0.5)
    assert inversion.ssim(one, images[1], BOX) < 0.2 < inversion.ssim(one, one + 0.2 * noise, BOX) < 1


def test_what_was_found_is_put_beside_the_image_it_is_most_like_of_its_label(images):
    labels = torch.tensor([4, 4, 7])
    assert torch.equal(inversion.matched(images, images[[1, 0, 2]], labels), images)
    other = inversion.matched(images, images[[2, 1, 0]], labels)
    assert torch.equal(other[2], images[0]), "another label is another image, however alike"


def test_the_inversion_gets_nearer_to_an_image_that_was_sent_than_from_noise(task):
    image = torch.zeros(1, 3, 32, 32)
    image[..., 8:24, 8:24] = 1.0
    labels = torch.tensor([3])
    case = inversion.Case("", image, labels, inversion.gradient(task.model, task.theta0, image, labels), 40, 1)
    noise = torch.randn(len(case.delta), generator=torch.Generator().manual_seed(0))
    told, nothing = (
        inversion.invert(task.model, task.theta0, upload, labels, BOX, 0, case) for upload in (case.delta, noise)
    )
    alike = [float(torch.corrcoef(torch.stack([image[0, 0].flatten(), x.flatten()]))[0, 1]) for x in (told, nothing)]
    assert alike[0] > alike[1] + 0.2


def test_membership_finds_what_shows_and_nothing_where_nothing_does():
    draw = np.random.default_rng(0)
    assert membership.found(draw.random(500), 2 + draw.random(200)) == (1.0, 100.0)
    area, caught = membership.found(draw.random(2000), draw.random(2000))
    assert abs(area - 0.5) < 0.05 and caught < 5


@pytest.mark.parametrize("kind", [kind for kind in robust.ATTACKS if kind not in ("nobody", "late", "reports")])
def test_hostile_sites_send_what_the_table_says_and_honest_ones_what_they_trained(kind):
    draw = torch.Generator().manual_seed(0)
    honest = {k: torch.randn(50, generator=draw) + 1 for k in range(5)}
    sent = dict(honest)
    robust.attack(kind, sent, [1, 4], draw)
    assert all(torch.equal(sent[k], honest[k]) for k in (0, 2, 3))
    own, ratio = honest[1], float(sent[1].norm() / honest[1].norm())
    cosine = float(torch.nn.functional.cosine_similarity(sent[1], own, dim=0))
    if kind.startswith("flip"):
        assert cosine == pytest.approx(-1) and ratio == pytest.approx(float(kind[4:]))
    elif kind == "little":
        assert torch.equal(sent[1], sent[4]) and ratio < 3
    else:
        assert ratio == pytest.approx(10) and abs(cosine) < (0.5 if kind == "noise" else 0.9)
