"""A signed app: what serve offers is what was signed, of this pfeddsh, and Flower's own check accepts it."""

import json
from pathlib import Path

import httpx
import pytest
import yaml

from pfeddsh.errors import UserError
from pfeddsh.live.security import certs, signing
from pfeddsh.live.security.trusted import trust

pytest.importorskip("flwr")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("signed")
    signing.sign(place / "server", place / "publisher")
    return place


def test_flower_takes_it_from_the_hub_and_finds_the_signature_good(made: Path) -> None:
    """By what a SuperLink asks its hub, and by what a SuperNode then does with the answer."""
    from flwr.supercore.fab import Fab
    from flwr.superlink.servicer.control.control_handlers import _format_verification
    from flwr.supernode.start_client_internal import _verify_fab

    (made / "site").mkdir(exist_ok=True)
    trust(made / "site", made / "publisher.pub")
    trusted = yaml.safe_load((made / "site" / "trusted.yaml").read_text())
    app = signing.signed(made / "server")
    assert app is not None and app.name == "@pfeddsh/pfeddsh-app==1.0.0"
    hub = signing.AppHub(app)
    try:
        told = httpx.post(f"{hub.address}/hub/fetch-fab", json={"app_id": "@pfeddsh/pfeddsh-app"}, timeout=60).json()
        bundle = httpx.get(told["fab_url"], timeout=60).content
        assert httpx.get(f"{hub.address}/etc/passwd", timeout=60).status_code == 404
    finally:
        hub.stop()
    verifications = _format_verification(told["verifications"])
    assert verifications["valid_license"] and _verify_fab(Fab("", bundle, verifications), trusted)
    assert not _verify_fab(Fab("", bundle + b"more", verifications), trusted)
    signing.sign(made / "other", made / "stranger")
    trust(made / "site", made / "stranger.pub")
    stranger = yaml.safe_load((made / "site" / "trusted.yaml").read_text())
    assert not _verify_fab(Fab("", bundle, verifications), stranger)


def test_what_does_not_fit_is_not_served(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert signing.signed(made) is None  # nothing is signed there
    monkeypatch.setattr(signing, "_code", lambda: {"pfeddsh_app/client_app.py": b"a newer version"})
    with pytest.raises(UserError, match="not that of the pfeddsh installed here; sign it again"):
        signing.signed(made / "server")
    monkeypatch.undo()
    path = made / "server" / "signed" / "signature.json"
    good = path.read_text()
    path.write_text(json.dumps(json.loads(good) | {"signed_at": 1}))
    with pytest.raises(UserError, match="the signature does not fit"):
        signing.signed(made / "server")
    path.write_text(good)


def test_only_the_right_kind_of_key_signs_or_is_trusted(made: Path, tmp_path: Path) -> None:
    certs.make_node_key(tmp_path)
    with pytest.raises(UserError, match="not an Ed25519 key"):
        signing.sign(tmp_path, tmp_path / "node.key")
    with pytest.raises(UserError, match="not an Ed25519 public key"):
        trust(tmp_path, tmp_path / "node.key.pub")
    with pytest.raises(UserError, match="cannot sign"):
        signing.sign(tmp_path, Path(__file__))
    assert not (tmp_path / "trusted.yaml").exists()
