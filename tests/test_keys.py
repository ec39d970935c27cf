"""Keys of what runs share: a field that nobody thought of can never share a wrong state."""

import importlib
import sys

import pytest
from conftest import TINY, tiny

from pfeddsh.compare.keys import code, stops
from pfeddsh.config import Config
from pfeddsh.federation.workbench import settled
from pfeddsh.mechanisms.clip import Protection
from pfeddsh.mechanisms.protection import PROTECTIONS, Unprotected
from pfeddsh.models import zoo
from pfeddsh.storage import controls


class Wider(Config):
    """A configuration as a later version may have it."""

    precision: str = "float32"


def config(**values):
    return Wider(**{**TINY, "method": "fedavg", **values})


def keys(made):
    return [stop.key for stop in stops(made, "images")], [controls.path(made, "images", t) for t in made.plan().steps]


def test_a_field_that_is_added_enters_every_key():
    shared, alone = keys(config())
    others, other = keys(config(precision="float16"))
    assert len(set(shared + others)) == 2 * len(shared)
    assert len(set(alone + other)) == 2 * len(alone)


@pytest.mark.parametrize("change", [{"engine": "pool", "workers": 3}, {"data_dir": "elsewhere"}])
def test_what_makes_no_difference_to_results_is_in_no_key(change):
    assert keys(config(**change)) == keys(config())


def test_a_run_is_written_down_with_the_device_it_uses(monkeypatch):
    assert settled(tiny()).device == "cpu"
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    assert settled(tiny()).device == "cuda"
    assert not set(keys(settled(config()))[0]) & set(keys(settled(config(device="cpu")))[0])


@pytest.mark.parametrize("name", sorted(Config.model_fields.keys() - controls.EXCLUDED))
def test_every_other_field_counts(name):
    values = {
        "partition": "iid", "sampling": "round-robin", "order": "names", "resize": "crop", "skip_unreadable": True,
        "privacy": Protection(clip=1.0), "evaluate": 2,
    }  # fmt: skip
    now = getattr(config(), name)
    other = values[name] if name in values else now if isinstance(now, str) else now + 1
    made = config().model_copy(update={name: other})
    if isinstance(now, str):
        assert getattr(made, name) != now, "name another value above"
    if name != "rounds_later":  # of which the first step knows nothing
        assert not set(keys(made)[0]) & set(keys(config())[0])
    alone = set(keys(made)[1]) & set(keys(config())[1])
    assert len(alone) == (3 if name == "privacy" else 0), "who trains alone uploads nothing"


def test_who_edits_a_shipped_network_meets_neither_its_states_nor_its_controls(tmp_path, monkeypatch):
    monkeypatch.setattr(zoo, "__path__", [*zoo.__path__, str(tmp_path)])
    found = []
    for width in (1, 2):
        (tmp_path / "narrow.py").write_text(
            f"__all__ = ['narrow']\n\ndef narrow(classes, shape):\n    return {width}\n"
        )
        sys.modules.pop(f"{zoo.__name__}.narrow", None)
        importlib.invalidate_caches()
        found.append(keys(config(model="narrow")))
    sys.modules.pop(f"{zoo.__name__}.narrow")
    assert not any(set(one) & set(two) for one, two in zip(*found, strict=True))


def test_protections_share_the_first_rounds_if_they_say_that_they_do_nothing_there(monkeypatch):
    class Silent(Unprotected):
        """Nobody has said when this one acts."""

    monkeypatch.setitem(PROTECTIONS, "silent", Silent)
    made = {name: tiny("pfeddsh-hyper", options={"protection": name}) for name in PROTECTIONS}
    first = {name: stops(config, "images")[0].key for name, config in made.items()}
    assert first["projection"] == first["snapshot"] == first["none"]
    assert len({first["projection"], first["gate"], first["silent"]}) == 3


def test_the_code_of_all_folders_but_the_front_counts(tmp_path, monkeypatch):
    """Each folder that computes is part of the digest: nobody has to remember a new one."""
    monkeypatch.setattr(sys.modules[code.__module__], "ROOT", tmp_path)
    found = set()
    for path in ("rng.py", "mechanisms/masks.py", "new_folder/deep/file.py", "storage/files.py"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text("pass")
        code.cache_clear()
        found.add(code())
    assert len(found) == 4
    for path in ("cli.py", "report/page.py", "live/site/calls.py"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text("pass")
        code.cache_clear()
        assert code() in found
    code.cache_clear()
