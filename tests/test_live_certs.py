"""Certificates, keys and the list of sites: made once, never overwritten, private where they must be."""

import shutil
import socket
import ssl
import stat
import subprocess
import threading
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="needs pfeddsh[flower]")
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from typer.testing import CliRunner

from pfeddsh.cli import app
from pfeddsh.errors import UserError
from pfeddsh.live.security import certs, listed, nodes, proxy
from pfeddsh.live.security.proxy import ERRORS, LOG
from pfeddsh.live.security.refusals import Watcher, explain


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def greet(folder: Path, name: str, authority: Path) -> str:
    """A strict TLS handshake with the server's certificate, by the name a site would use."""
    inside = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    inside.load_cert_chain(folder / "tls" / "server.pem", folder / "tls" / "server.key")
    outside = ssl.create_default_context(cafile=str(authority))
    outside.verify_flags |= ssl.VERIFY_X509_STRICT
    left, right = socket.socketpair()

    def serve() -> None:
        try:
            inside.wrap_socket(left, server_side=True).close()
        except (ssl.SSLError, OSError):
            left.close()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        with outside.wrap_socket(right, server_hostname=name) as connection:
            return str(connection.version())
    finally:
        right.close()
        thread.join(10)


def test_the_server_is_known_by_its_names_and_by_its_own_ca_alone(tmp_path: Path) -> None:
    certs.make(tmp_path / "a", ["fed.example.org", "10.1.2.3"])
    certs.make(tmp_path / "b")
    ca = tmp_path / "a" / "tls" / "ca.crt"
    for name in ("fed.example.org", "10.1.2.3", "localhost", "127.0.0.1"):
        assert greet(tmp_path / "a", name, ca) == "TLSv1.3"
    with pytest.raises(ssl.SSLCertVerificationError, match="mismatch") as wrong_name:
        greet(tmp_path / "a", "other.example.org", ca)
    assert "does not name this address" in str(explain(str(wrong_name.value)))
    with pytest.raises(ssl.SSLCertVerificationError) as wrong_ca:
        greet(tmp_path / "a", "localhost", tmp_path / "b" / "tls" / "ca.crt")
    assert "not made by the CA" in str(explain(str(wrong_ca.value)))


def test_private_files_are_private_and_nothing_is_overwritten(tmp_path: Path) -> None:
    made = certs.make(tmp_path, ["one.example.org"])
    assert [path.name for path in made] == ["ca.crt", "server.pem"]
    for name in ("ca.key", "server.key"):
        assert stat.S_IMODE((tmp_path / "tls" / name).stat().st_mode) == 0o600
    before = contents(tmp_path)
    assert certs.make(tmp_path, ["two.example.org"]) == []
    assert contents(tmp_path) == before
    with pytest.raises(UserError, match="not overwritten"):
        certs.write_new(tmp_path / "tls" / "ca.key", b"", 0o600)
    assert contents(tmp_path) == before


def test_a_new_server_certificate_keeps_the_ca(tmp_path: Path) -> None:
    certs.make(tmp_path)
    ca = (tmp_path / "tls" / "ca.crt").read_bytes()
    for name in ("server.pem", "server.key"):
        (tmp_path / "tls" / name).unlink()
    assert [path.name for path in certs.make(tmp_path, ["new.example.org"])] == ["server.pem"]
    assert (tmp_path / "tls" / "ca.crt").read_bytes() == ca
    assert greet(tmp_path, "new.example.org", tmp_path / "tls" / "ca.crt")


def test_an_interrupted_attempt_is_taken_up_and_a_foreign_key_refused(tmp_path: Path) -> None:
    certs.make(tmp_path)
    key = (tmp_path / "tls" / "server.key").read_bytes()
    (tmp_path / "tls" / "server.pem").unlink()  # as if killed between key and certificate
    certs.make(tmp_path)
    assert (tmp_path / "tls" / "server.key").read_bytes() == key
    assert greet(tmp_path, "localhost", tmp_path / "tls" / "ca.crt")

    (tmp_path / "tls" / "server.pem").unlink()
    (tmp_path / "tls" / "ca.key").write_bytes(key)
    with pytest.raises(UserError, match="does not belong"):
        certs.make(tmp_path)
    (tmp_path / "tls" / "ca.key").unlink()
    with pytest.raises(UserError, match=r"ca\.key is needed"):
        certs.make(tmp_path)
    (tmp_path / "tls" / "server.pem").touch()
    (tmp_path / "tls" / "ca.crt").unlink()
    with pytest.raises(UserError, match="restore the CA"):
        certs.make(tmp_path)


def test_a_name_that_is_none_is_refused_before_anything_is_signed(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="neither a host name nor an address"):
        certs.make(tmp_path, ["a" * 70 + ".example.org"])
    assert not (tmp_path / "tls" / "server.pem").exists()


def test_a_site_keeps_its_key(tmp_path: Path) -> None:
    print_ = certs.make_node_key(tmp_path)
    private = load_ssh_private_key((tmp_path / "node.key").read_bytes(), None)  # as flower-supernode reads it
    assert isinstance(private, ec.EllipticCurvePrivateKey) and private.curve.name == "secp384r1"
    assert stat.S_IMODE((tmp_path / "node.key").stat().st_mode) == 0o600
    before = contents(tmp_path)
    assert certs.make_node_key(tmp_path) == print_ and contents(tmp_path) == before
    (tmp_path / "node.key.pub").unlink()
    assert certs.make_node_key(tmp_path) == print_ and contents(tmp_path) == before
    if keygen := shutil.which("ssh-keygen"):
        said = subprocess.run([keygen, "-lf", tmp_path / "node.key.pub"], capture_output=True, text=True, check=True)
        assert said.stdout.split()[:2] == ["384", print_]
    certs.make_node_key(tmp_path / "other")
    shutil.copy(tmp_path / "other" / "node.key.pub", tmp_path / "node.key.pub")
    with pytest.raises(UserError, match="does not belong"):
        certs.make_node_key(tmp_path)
    (tmp_path / "node.key").write_text("nothing")
    with pytest.raises(UserError, match="not a readable key"):
        certs.make_node_key(tmp_path)


def test_sites_come_and_go_by_their_keys(tmp_path: Path) -> None:
    folder, keys = tmp_path / "coordinator", {}
    for name in ("a", "b", "c"):
        keys[name] = certs.make_node_key(tmp_path / name)
    public = {name: tmp_path / name / "node.key.pub" for name in keys}
    for _ in range(2):  # again is no mistake
        assert nodes.add(folder, "north", public["a"]) == keys["a"]
    with pytest.raises(UserError, match="already that of site 'north'"):
        nodes.add(folder, "south", public["a"])
    with pytest.raises(UserError, match="has another key"):
        nodes.add(folder, "north", public["b"])
    for name in ("../north", "", "a b", ".hidden", "x" * 65):
        with pytest.raises(UserError, match="cannot be a site's name"):
            nodes.add(folder, name, public["b"])
    (tmp_path / "bad.pub").write_text("ssh-rsa nonsense")
    for bad in (tmp_path / "bad.pub", tmp_path / "gone.pub", tmp_path / "a" / "node.key"):
        with pytest.raises(UserError, match=str(bad)):
            nodes.add(folder, "west", bad)

    assert nodes.revoke(folder, "north") == keys["a"]
    with pytest.raises(UserError, match=r"no site 'north'.*there are: none"):
        nodes.revoke(folder, "north")
    with pytest.raises(UserError, match="was revoked"):
        nodes.add(folder, "north", public["a"])
    nodes.add(folder, "north", public["b"])
    nodes.revoke(folder, "north")
    nodes.add(folder, "north", public["c"])
    states = {site.key: (site.name, site.state) for site in listed.sites(folder)}
    assert states == {
        keys["a"]: ("north", "revoked"),
        keys["b"]: ("north", "revoked"),
        keys["c"]: ("north", "allowed"),
    }


def test_the_proxy_is_written_for_a_superlink_on_the_loopback_only(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="has no ca"):
        proxy.write(tmp_path)
    certs.make(tmp_path)
    for address in ("0.0.0.0:9093", "10.0.0.1:9093", "[::]:9093"):
        with pytest.raises(UserError, match="must listen on the loopback"):
            proxy.write(tmp_path, superlink=address)
    for address in ("9443", "example.org:9443", "0.0.0.0:0", "0.0.0.0:x; evil", "127.0.0.1:99999"):
        with pytest.raises(UserError, match="is not an address"):
            proxy.write(tmp_path, listen=address)
    assert "listen [::]:9443 ssl;" in proxy.write(tmp_path, "[::]:9443", "[::1]:9093").read_text()


def test_refusals_are_told_once_summed_up_and_after_a_rotation(tmp_path: Path) -> None:
    line = (
        '{"time":"2026-03-01T08:00:0%d+00:00","address":"10.0.0.%d","method":"GET","path":"/x","status":404,"key":""}\n'
    )
    (tmp_path / LOG).write_text(line % (0, 0))
    watcher = Watcher(tmp_path)
    assert watcher.new() == []
    with open(tmp_path / LOG, "a") as file:
        file.write(line % (1, 1) + line % (2, 1) + "not json\n" + (line % (3, 2))[:20])
    assert [(entry["client"], entry["reason"]) for entry in watcher.new()] == [
        ("10.0.0.1", "asked for /x, which is not open to the outside (2 times)")
    ]
    (tmp_path / LOG).write_text("")
    assert watcher.new() == []
    (tmp_path / LOG).write_text("".join(line % (4, number) for number in range(50)))
    assert len(watcher.new()) == Watcher.LIMIT
    (tmp_path / ERRORS).write_text(
        "2026/03/01 08:00:00 [info] 1#1: *3 client 10.0.0.1 closed keepalive connection\n"
        "2026/03/01 08:00:01 [info] 1#1: *4 SSL_do_handshake() failed (SSL: error:0A000412:SSL routines::sslv3 alert"
        " bad certificate:SSL alert number 42) while SSL handshaking, client: 10.0.0.7, server: 0.0.0.0:9443\n"
    )
    assert [(entry["client"], entry["reason"]) for entry in watcher.new()] == [
        ("10.0.0.7", "TLS failed: sslv3 alert bad certificate")
    ]


def test_the_command_line_makes_admits_and_revokes(tmp_path: Path) -> None:
    def said(*words: object) -> str:
        result = CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)
        assert result.exit_code == 0
        return result.output

    folder, home = tmp_path / "coordinator", tmp_path / "site"
    assert "server.pem" in said("certs", folder, "--host", "fed.example.org")
    certificate = x509.load_pem_x509_certificate((folder / "tls" / "server.pem").read_bytes())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["fed.example.org", "localhost"]
    assert "nothing to do" in said("certs", folder)
    key = said("keygen", home).split()[-1]
    assert key == certs.make_node_key(home)
    added = said("nodes", "add", folder, "north", home / "node.key.pub")
    assert key in added and "takes effect when the coordinator starts" in added
    assert "north" in said("nodes", "list", folder)
    assert "is revoked" in said("nodes", "revoke", folder, "north")
