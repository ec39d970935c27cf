"""Clip, noise and what they are worth, in simulation: bounds are exact, noise is of its size, off means off."""

import math

import pytest
import torch
from conftest import comparable, final_tensors, tiny
from scipy import stats

from pfeddsh.commands.options import configure
from pfeddsh.configure import build
from pfeddsh.errors import UserError
from pfeddsh.federation.run import run
from pfeddsh.mechanisms import accounting
from pfeddsh.mechanisms.clip import Protection
from pfeddsh.mechanisms.privacy import from_system, gaussian, laplace, protect, repeatable
from pfeddsh.messages import BadMessage, Message


def stream(seed=0):
    return repeatable(torch.Generator().manual_seed(seed))


def length(download, upload):
    changes = [t.double() - (0 if name == "delta" else download[name].double()) for name, t in upload.tensors.items()]
    return math.sqrt(sum(float(change.square().sum()) for change in changes))


@pytest.mark.parametrize("clip", [1e-3, 0.7, 30.0])
@pytest.mark.parametrize("names", [("delta",), ("theta",), ("body", "logits")])
def test_the_clip_bounds_the_norm_exactly(clip, names):
    draw = torch.Generator().manual_seed(1)
    download = Message({name: torch.randn(5000, generator=draw) for name in ("theta", "body", "logits")})
    upload = Message({name: torch.randn(5000, generator=draw) for name in names}, {"samples": 3})
    told = protect(download, upload, Protection(clip=clip), stream())
    assert clip * (1 - 1e-4) < length(download, told) <= clip
    assert told.facts == {"samples": 3}


def test_a_short_change_is_sent_as_it_is_and_a_broken_one_as_none():
    upload = Message({"delta": torch.full((4,), 0.1)})
    assert protect(Message(), upload, Protection(clip=1.0), stream()) is upload
    broken = Message({"delta": torch.tensor([1.0, float("nan")])})
    assert protect(Message(), broken, Protection(clip=1.0), stream())["delta"].tolist() == [0, 0]


def test_noise_has_the_size_that_was_asked_for_whatever_the_upload():
    download, protection = Message({"theta": torch.ones(50_000)}), Protection(clip=2.0, noise=0.5)
    for trained in (torch.ones(50_000), torch.full((50_000,), 7.0)):
        told = protect(download, Message({"theta": trained}), protection, from_system)["theta"] - 1
        assert abs(float(told.std()) - 1.0) < 0.02 and abs(float(told.mean())) < 0.05


@pytest.mark.parametrize("source", [from_system, stream()])
def test_noise_is_what_it_is_called(source):
    assert stats.kstest(gaussian(source, 20_000).numpy(), "norm").pvalue > 1e-4
    assert stats.kstest(laplace(source, 20_000).numpy(), "laplace").pvalue > 1e-4


def test_what_is_no_change_of_a_download_cannot_be_clipped():
    with pytest.raises(BadMessage, match="codes"):
        protect(Message({"theta": torch.ones(3)}), Message({"codes": torch.ones(3)}), Protection(clip=1.0), stream())


@pytest.mark.parametrize("method", ["fedselect", "fedweit", "hr", "pefll", "odpfl-hn", "central"])
def test_methods_that_send_something_else_are_refused(method):
    with pytest.raises(UserError, match="cannot be clipped"):
        build({"method": method, "privacy": {"clip": 1.0}})


def test_noise_needs_a_clip_and_both_can_be_set_on_the_command_line():
    with pytest.raises(UserError, match="noise without a clip"):
        build({"privacy": {"noise": 1.0}})
    config = configure(None, ["privacy.clip=2", "privacy.noise=0.5"])
    assert config.privacy == Protection(clip=2, noise=0.5)
    assert config.protocol()["privacy.noise"] == 0.5
    assert not any(name.startswith("privacy") for name in build({}).protocol())


def test_a_wide_clip_without_noise_changes_no_bit(reference, tmp_path):
    plain = reference("fedper")
    results = run(tiny("fedper", privacy={"clip": 1e6}), tmp_path / "run")
    assert "privacy" not in plain.results
    told = {name: value for name, value in comparable(results).items() if name not in ("privacy", "protocol")}
    assert told == {name: value for name, value in comparable(plain.results).items() if name != "protocol"}
    for name, tensor in final_tensors(plain.out).items():
        assert torch.equal(tensor, final_tensors(tmp_path / "run")[name])


def test_a_noised_run_repeats_on_any_engine_and_tells_its_epsilon(reference, tmp_path):
    noised = reference("pfeddsh", privacy={"clip": 1.0, "noise": 0.1})
    pool = run(tiny("pfeddsh", privacy={"clip": 1.0, "noise": 0.1}, engine="pool"), tmp_path / "pool")
    assert comparable(pool) == comparable(noised.results)
    assert noised.results["acc"] != reference("pfeddsh").results["acc"]
    told = noised.results["privacy"]
    assert told["uploads"] == max(noised.results["visits"])
    assert told["epsilon"] == accounting.epsilon({("gaussian", 0.05): told["uploads"]}, 1e-5)


def test_epsilon_is_the_accountants():
    import dp_accounting
    from dp_accounting import rdp

    accountant = rdp.RdpAccountant()
    accountant.compose(dp_accounting.GaussianDpEvent(4.0), 7)  # noise of 8 clips, of which one example can move two
    accountant.compose(dp_accounting.LaplaceDpEvent(2.0))
    events = {accounting.upload(8.0): 7, accounting.histogram(0.5): 1}
    assert accounting.epsilon(events, 1e-6) == accountant.get_epsilon(1e-6)
    assert accounting.epsilon({}, 1e-6) == 0
    # at least what the exact analysis of the Gaussian mechanism says, and not much more
    mu = math.sqrt(7) / 4
    told = accounting.epsilon({accounting.upload(8.0): 7}, 1e-6)
    exact = stats.norm.cdf(mu / 2 - told / mu) - math.exp(told) * stats.norm.cdf(-mu / 2 - told / mu)
    assert 1e-8 < exact <= 1e-6
