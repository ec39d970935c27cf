"""A hundred mistakes of users: one clear line each, exit code 2, and nothing half-written."""

import json
import os
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
from conftest import tiny

from pfeddsh import Config, UserError, cli
from pfeddsh import run as start
from pfeddsh.federation.run import run

QUICK = ("--rounds", "1", "--schedule", "4+1", "--method", "fedavg", "--set", "engine=serial")


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with what users have lying about, as the current one."""
    monkeypatch.chdir(tmp_path)
    Path("notes.txt").write_text("no data")
    Path("broken.npz").write_bytes(b"PK\x03\x04 and nothing else")
    np.savez("lacking.npz", x_train=np.zeros((4, 8, 8), np.uint8))
    Path("empty").mkdir()
    Path("one", "cat").mkdir(parents=True)
    Path("bad.toml").write_text("seed = = 3")
    Path("wrong.toml").write_text("sede = 3")
    Path("binary.toml").write_bytes(b"\xff\xfe\x00")
    Path("plan.toml").write_text("method = ['fedavg']")
    Path("axes.toml").write_text("[set]\nseed = 3")
    Path("names.toml").write_text("[variants.'a/b']\nlr = 0.1")
    Path("mine.py").write_text("class Mine:\n    pass\n")
    Path("fails.py").write_text("import nothing_like_this\n")
    Path("syntax.py").write_text("def net(:\n")
    Path("junk.json").write_text("{}")
    Path("torn.json").write_text('{"pa":')
    Path("begun").mkdir()
    Path("begun", "config.toml").write_text("seed = = 3")
    Path("other").mkdir()
    Path("other", "compare.toml").write_text("methods = ['fedper']\n")
    return tmp_path


@pytest.fixture
def pfeddsh(monkeypatch, capsys):
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)
    monkeypatch.setenv("PFEDDSH_CACHE", os.environ["PFEDDSH_CACHE"])  # --cache sets it for the process

    def command(*arguments):
        monkeypatch.setattr(sys, "argv", ["pfeddsh", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            cli.main()
        return end.value.code, capsys.readouterr().err

    return command


MISTAKES = {
    # commands and options
    "rnu": "No such command 'rnu'",
    "run --sede 3": "No such option",  # click 8.4 and 8.3 differ in what follows
    "run --seed three": "'three' is not a valid integer",
    "run --seed": "requires an argument",
    "run a.toml b.toml": "unexpected extra argument",
    "compare --jobs -1": "-1 is not in the range",
    "compare --engine cloud": "'cloud' is not one of",
    "data shwo": "No such command 'shwo'",
    "resume": "Missing argument",
    "report": "Missing argument",
    "data download": "Missing argument",
    # names
    "data download cifar11": "unknown dataset 'cifar11'; did you mean cifar10",
    "run --method fedperr": "unknown method 'fedperr'; did you mean fedper",
    "run --dataset cifar11": "unknown dataset 'cifar11'; did you mean cifar10",
    "run --model lenett": "unknown model 'lenett'",
    "run --track tensorbord": "unknown tracker 'tensorbord'; did you mean tensorboard",
    "run --set rounds_frist=3": "unknown key 'rounds_frist'; did you mean rounds_first",
    "run --set options.heads=3": "unknown setting 'heads'",
    "run --partition clases=2": "partition",
    # values
    "run --set alpha": "--set alpha: write key=value",
    "run --set alpha=large": "alpha: Input should be a valid number",
    "run --set alpha=0": "alpha: Input should be greater than 0",
    "run --set options=3": "options",
    "run --seed -1": "seed: Input should be greater than or equal to 0",
    "run --rounds many": "--rounds many: write one number, or two with a comma",
    "run --rounds 0": "rounds_first: Input should be greater than or equal to 1",
    "run --set engine=warp": "engine: Input should be 'serial', 'pool' or 'ray'",
    "run --set device=tpu": "device",
    "run --set lr=nan": "lr: Input should be a finite number",
    "run --set image_size=64": "lenet takes images of 32x32 alone",
    "run --set evidence=held-out": "no images are set aside",
    "run --set order=names": "only clients that the data name can be ordered",
    "run --partition natural --set order=nobody.txt": "expected seed, names, a list, or a file",
    "run --schedule 80+": "schedule '80+': cannot read ''",
    "run --schedule 0+5": "cannot read '0'",
    "run --schedule [bold]80": "schedule '[bold]80': cannot read",
    "run --schedule all": "schedule 'all': cannot read",
    "run --schedule 4000+1000": "clients",
    "compare --seeds a,b": "--seeds a,b: write numbers with commas",
    "compare --methods fedavg --cache-limit much": "much",
    "cache clean --to much": "much",
    "models --classes 0": "0 is not in the range",
    "models --shape 0 0 0": "--shape 0 0 0: channels, height and width are at least 1",
    "run --set privacy.clpi=1": "privacy: unknown key 'clpi'; did you mean clip",
    # files that are read
    "run none.toml": "none.toml: no such file",
    "run bad.toml": "bad.toml: not valid TOML",
    "run wrong.toml": "wrong.toml: unknown key 'sede'; did you mean seed",
    "run binary.toml": "binary.toml: not valid TOML",
    "run empty": "empty: cannot be read",
    "run --dataset no/such/folder": "no dataset at no/such/folder",
    "run --dataset missing.npz": "no dataset at missing.npz",
    "run --dataset notes.txt": "expected a folder of class folders, an .npz or a .parquet file",
    "run --dataset broken.npz": "not a readable npz archive",
    "run --dataset lacking.npz": "lacks y_train",
    "run --dataset empty": "expected at least 2 folders of images",
    "run --dataset one": "0 images, at least 2 needed",
    "run --partition natural": "digits has no clients of its own",
    "run --dataset cifar10 --data-dir nowhere": "nowhere is not a folder",
    "run --init missing.safetensors": "missing.safetensors",
    "run --init notes.txt": "notes.txt",
    "run --init empty": "empty is a folder",
    "run --method none.py:Mine": "there is no file",
    "run --method mine:Yours": "unknown name 'Yours'",
    "run --method mine:boom": "method mine:boom: unknown name 'boom'",  # as it was written: no emoji
    "run --model syntax:net": "SyntaxError: invalid syntax (syntax.py, line 1)\n",
    "run --method fails:Mine": "No module named 'nothing_like_this'",
    "run --model nowhere.models:net": "there is no module nowhere",
    "compare plan.toml": "plan.toml: unknown key 'method'; did you mean methods",
    "compare axes.toml": "seed is set by seeds at the top",
    "compare names.toml": "it becomes a folder's name",
    "compare --methods fedavg,fedperr": "unknown method 'fedperr'",
    "report nothing": "nothing does not exist",
    "report junk.json": "not a results.json of pfeddsh",
    "report torn.json": "not a results.json of pfeddsh: Invalid JSON",
    "data show cifar11": "unknown dataset 'cifar11'",
    # places that are written to
    "run --out notes.txt": "notes.txt is a file",
    "run --out notes.txt/run": "notes.txt is not a folder",
    "run --out /proc/nowhere/run": "/proc",
    "compare --methods fedavg --out notes.txt": "notes.txt is a file",
    "compare --out tpyo": "tpyo holds no comparison to continue",
    "compare --methods fedavg --out other --cache mine": "pfeddsh compare --out other --cache mine",
    "compare --methods fedavg --cache notes.txt": "notes.txt is a file",
    "cache --cache notes.txt": "--cache notes.txt: no such folder",
    "cache clean --cache nowhere": "--cache nowhere: no such folder",
    "demo --out notes.txt": "notes.txt is a file",
    "report begun --out empty": "empty is a folder",
    "data show --schedule 4+1 --draw who.txt": "who.txt",
    "data show --schedule 4+1 --draw empty": "empty is a folder",
    "data show --schedule 4+1 --draw nowhere/who.png": "nowhere",
    "data download cifar10 --data-dir notes.txt": "notes.txt is a file",
    "data list --data-dir nowhere": "nowhere is not a folder",
    "resume nowhere": "nowhere holds no run",
    "resume begun": "config.toml: not valid TOML",
    "resume notes.txt": "notes.txt holds no run",
    # a live federation
    "serve fed": "which classes are there? give --classes",
    "serve fed --classes cat": "classes",
    "serve fed --classes cat,cat": "classes has a name twice",
    "serve fed --classes cat,dog --method fedperr": "unknown method 'fedperr'; did you mean fedper",
    "serve fed --classes cat,dog --set rounds_frist=3": "unknown key 'rounds_frist'; did you mean rounds_first",
    "serve fed --classes cat,dog --page here": "here",
    "serve fed --classes cat,dog --port 99999": "99999 is not in the range",
    "serve fed --classes cat,dog --alert-after -1": "-1.0 is not in the range",
    "serve fed --classes cat,dog": "ca.crt is missing; make it with `pfeddsh certs fed`",
    "serve fed --config none.toml": "none.toml: no such file",
    "serve notes.txt --classes cat,dog": "notes.txt is a file",
    "join site": "where are this site's images? give --data DIR",
    "join site --data nothere": "nothere: no such folder or file",
    "join site --data one --server 127.0.0.1": "server: '127.0.0.1' is not HOST:PORT",
    "join site --data one --server 127.0.0.1 --insecure": "'127.0.0.1' is not HOST:PORT",
    "join site --data one --server example.org:9443 --insecure": "--insecure is for a coordinator on this machine",
    "join site --data one --server example.org:9443": "ca.crt is missing",
    "join site --data one --server example.org:9443 --ca none.crt": "--ca none.crt: no such file",
    "join site --data one --insecure --trust notes.txt": "notes.txt is not a public key",
    "join notes.txt --data one": "notes.txt is a file",
    "keygen notes.txt": "notes.txt is a file",
    "certs notes.txt": "notes.txt is a file",
    "certs fed --host fed.example.org:9443": "'fed.example.org:9443' is neither a host name nor an address",
    "sign nowhere --key publisher": "nowhere: no such folder",
    "sign empty --key notes.txt": "notes.txt cannot sign",
    "nodes list nowhere": "nowhere is no coordinator's folder",
    "nodes add nowhere north notes.txt": "nowhere is no coordinator's folder",
    "nodes revoke nowhere north": "north",
    "leave nowhere": "nowhere holds no site",
    "status nowhere": "nowhere",
    "predict nowhere photo.png": "nowhere",
    "export nowhere --out model": "nowhere",
    "doctor nowhere": "nowhere is neither a coordinator's folder",
}


def listing(place):
    return {path.relative_to(place): path.is_file() and path.read_bytes() for path in place.rglob("*")}


@pytest.mark.parametrize("command", MISTAKES)
def test_a_mistake_is_one_clear_line_and_leaves_nothing(place, pfeddsh, command):
    assert len(MISTAKES) >= 100
    before = listing(place)
    code, errors = pfeddsh(*command.split())
    assert errors.startswith("error: ")
    assert errors.count("\n") == 1, "one line"
    assert MISTAKES[command] in errors
    assert code == 2
    assert {path: content for path, content in listing(place).items() if "__pycache__" not in str(path)} == before


@pytest.mark.parametrize(
    "arguments", [("run", "--out", "caf\udce9"), ("run", "--dataset", "caf\udce9"), ("resume", "\udcff")]
)
def test_a_path_that_is_not_utf8_is_explained(place, pfeddsh, arguments):
    code, errors = pfeddsh(*arguments)
    assert code == 2 and "is not valid UTF-8; rename" in errors and errors.count("\n") == 1


def test_a_folder_that_may_not_be_read_is_named(place, pfeddsh, monkeypatch):
    def forbidden(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "iterdir", forbidden)
    code, errors = pfeddsh("run", "--dataset", "one", "--out", "run")
    assert code == 2 and "one" in errors and "Permission denied" in errors and errors.count("\n") == 1
    assert not Path("run").exists()


def test_a_class_folder_that_may_not_be_read_is_named(place, pfeddsh, monkeypatch):
    """`os.walk` passes over a folder that it may not open; tests may be run by root, who may open all."""
    Path("one", "dog", "more").mkdir(parents=True)
    scan = os.scandir

    def forbidden(path="."):
        if Path(path).name == "more":
            raise PermissionError(13, "Permission denied", str(path))
        return scan(path)

    monkeypatch.setattr(os, "scandir", forbidden)
    for name in ("cat", "dog"):
        for number in range(3):
            Path("one", name, f"{number}.png").write_bytes(b"")
    code, errors = pfeddsh("run", "--dataset", "one", "--out", "run")
    assert code == 2 and "cannot read the folder" in errors and "one/dog/more: Permission denied" in errors
    assert errors.count("\n") == 1 and not Path("run").exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_so_it_is_with_real_permissions(place, pfeddsh):
    Path("one", "cat").chmod(0)
    code, errors = pfeddsh("run", "--dataset", "one", "--out", "run")
    Path("one", "cat").chmod(0o700)
    assert code == 2 and "one/cat: Permission denied" in errors and errors.count("\n") == 1


@pytest.mark.parametrize(
    "command", ["serve empty --classes a,b", "join empty --data one", "keygen empty", "certs empty"]
)
def test_a_folder_that_may_not_be_written_is_named(place, pfeddsh, monkeypatch, command):
    monkeypatch.setattr(os, "access", lambda _, mode, **__: not mode & os.W_OK)
    code, errors = pfeddsh(*command.split())
    assert code == 2 and "cannot write to empty: no permission" in errors and errors.count("\n") == 1
    assert not list(Path("empty").iterdir())


def test_training_that_diverges_ends_with_the_reason_and_no_table(place, pfeddsh):
    code, errors = pfeddsh("run", *QUICK, "--set", "lr=1e9", "--rounds", "3", "--out", "run")
    assert code == 2 and errors.count("\n") == 1
    assert "uploads of the first 3 rounds were refused" in errors and "lower lr than 1e+09" in errors
    assert not Path("run", "results.json").exists()
    events = [json.loads(line) for line in Path("run", "events.jsonl").read_text().splitlines()]
    assert [event["event"] for event in events].count("round") == 3
    assert any(event["event"] == "refused" for event in events)


def test_changed_data_are_not_resumed(place, pfeddsh):
    images = np.random.default_rng(0).integers(0, 255, (120, 8, 8), dtype=np.uint8)
    labels = np.arange(120) % 3
    np.savez("mine.npz", x_train=images, y_train=labels)
    config = tiny("fedavg", dataset="mine.npz", schedule="3+1", rounds_first=1, rounds_later=1)
    run(config, Path("run"))
    written = Path("run", "config.toml").read_text()
    assert f'dataset = "{place / "mine.npz"}"' in written, "known from every folder"
    Path("run", "results.json").unlink()
    np.savez("mine.npz", x_train=images[::-1], y_train=labels)
    code, errors = pfeddsh("resume", "run")
    assert code == 2 and "the data have changed since this run began" in errors
    assert not Path("run", "results.json").exists()


@pytest.mark.parametrize(
    ("values", "explanation"),
    [
        ({"mehtod": "fedavg"}, "unknown key 'mehtod'; did you mean method"),
        ({"seed": -1}, "seed: Input should be"),
        ({"privacy": {"clpi": 1}}, "privacy: unknown key 'clpi'; did you mean clip"),
    ],
)
def test_in_python_a_mistake_is_a_user_error(values, explanation):
    with pytest.raises(UserError, match=explanation):
        Config(**values)


def test_in_python_so_is_a_wrong_call(tmp_path):
    with pytest.raises(UserError, match=r"Config\('digits'\): name the key, for instance Config\(dataset='digits'\)"):
        Config("digits")
    config = Config()
    with pytest.raises(UserError, match="seed = 3: a configuration does not change") as refused:
        config.seed = 3
    assert "\n" not in str(refused.value) and config.seed == 0
    with pytest.raises(UserError, match="run takes a Config, not a dict"):
        start({"dataset": "digits"}, tmp_path / "run")
    assert not (tmp_path / "run").exists()
