"""`pfeddsh serve`, `join` and `federation`: the core commands of live onboarding."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from pfeddsh.errors import UserError
from pfeddsh.live.edge_cli import _flower

console = Console(emoji=False)

Insecure = Annotated[bool, typer.Option(help="no TLS, no node keys; for one machine only")]


def register(app: typer.Typer) -> None:
    app.command()(serve)
    app.command()(join)
    app.command()(federation)


def _say(text: str) -> None:
    console.print(text, soft_wrap=True, highlight=False)


def serve(
    folder: Annotated[Path, typer.Argument(help="the coordinator's folder, with its complete state")],
    config: Annotated[Path | None, typer.Option(help="a TOML file; its keys go to FOLDER/federation.toml")] = None,
    classes: Annotated[str | None, typer.Option(help="names of all classes: cat,dog,horse")] = None,
    method: Annotated[str | None, typer.Option(help="see `pfeddsh methods`, or your own package.module:Class")] = None,
    rounds: Annotated[int | None, typer.Option(help="rounds per step: rounds_first and rounds_later")] = None,
    batch_min: Annotated[int | None, typer.Option(help="a step opens when this many newcomers wait")] = None,
    batch_wait: Annotated[
        float | None, typer.Option(help="a step opens when a newcomer has waited this many seconds")
    ] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", help="any other key: lr=0.05, options.NAME=VALUE")] = None,
    port: Annotated[int, typer.Option(help="port of the SuperLink on the loopback interface", min=1, max=65535)] = 9092,
    listen: Annotated[str, typer.Option(help="address of the proxy for sites")] = "0.0.0.0:9443",
    page: Annotated[
        str, typer.Option(help="PORT or HOST:PORT of the status page, /health and /metrics; 0: any free port")
    ] = "0",
    alert_after: Annotated[float, typer.Option(help="minutes without progress before an alert; 0: never", min=0)] = 30,
    health: Annotated[str | None, typer.Option(help="HOST:PORT of Flower's own gRPC health service")] = None,
    attach: Annotated[bool, typer.Option(help="use a SuperLink that is already running on --port")] = False,
    insecure: Insecure = False,
) -> None:
    """Run the coordinator of a federation until it is stopped. When restarted, it continues.

    Newcomers wait in a queue and are onboarded in batches; existing clients are offered better models when online.
    TLS and node keys are required: run `pfeddsh certs FOLDER` first. Sites connect through the proxy (nginx.conf).

    Example: `pfeddsh serve hospital --classes normal,pneumonia --batch-min 3 --batch-wait 86400`
    """
    from pfeddsh.live.coordinator.config import build, check_unchanged, save
    from pfeddsh.live.coordinator.engine import LiveBench
    from pfeddsh.live.site.policy import Policy
    from pfeddsh.storage.files import locked, make_folder, writable
    from pfeddsh.values import override, read

    with _flower():
        from pfeddsh.live.coordinator.health import Alarm
        from pfeddsh.live.coordinator.page import place, serve_page
        from pfeddsh.live.coordinator.serve import Server

    writable(folder)
    path = folder / "federation.toml"
    values = read(path) if path.exists() else {}
    values |= read(config) if config else {}
    given: dict[str, Any] = {"method": method, "batch_min": batch_min, "batch_wait": batch_wait}
    given |= {"rounds_first": rounds, "rounds_later": rounds, "classes": classes.split(",") if classes else None}
    values |= {key: value for key, value in given.items() if value is not None}
    values = override(values, set_ or [])
    if "classes" not in values:
        raise UserError("which classes are there? give --classes cat,dog,horse, or classes = [...] in a TOML file")
    made = build(values, str(config or "command line"))
    learner = LiveBench(made, []).method  # one that cannot work with this network says so here
    if lacking := Policy().withholds(learner.expected_card().tensors):
        _say(
            f"warning: {made.method} cannot do without {', '.join(lacking)}, which sites withhold unless their "
            "policy.toml says otherwise; until then they wait"
        )
    host, wanted = place(page)
    server = Server(folder, port, insecure, _say, listen, attach, health)
    make_folder(folder)
    with locked(folder):  # nothing is touched before: another `serve` may be at work
        check_unchanged(folder, made)
        save(folder, made)
        shown = serve_page(folder, host, wanted, alert_after)
        where = f"http://{host}:{shown.server_port}"
        _say(f"coordinator in {folder}; `pfeddsh status {folder}` and {where} tell how it goes")
        alarm = Alarm(folder, alert_after, _say)
        alarm.start()
        try:
            _until_interrupted(server.run)
        finally:
            alarm.stop()
            shown.shutdown()
            shown.server_close()


def join(
    home: Annotated[Path, typer.Argument(help="the site's folder: its key, memory and models")],
    data: Annotated[str | None, typer.Option(help="a folder of class folders, or an .npz file")] = None,
    server: Annotated[str | None, typer.Option(help="host:port of the coordinator")] = None,
    name: Annotated[str | None, typer.Option(help="name of this site; default: the folder's name")] = None,
    ca: Annotated[Path | None, typer.Option(help="the coordinator's tls/ca.crt, copied to HOME")] = None,
    insecure: Annotated[bool | None, typer.Option(help="no TLS, no node keys; for one machine only")] = None,
    allow: Annotated[
        list[str] | None, typer.Option(help="a method or model that may run here: package.module:name")
    ] = None,
    trust: Annotated[
        Path | None, typer.Option(help="a public key (.pub): run only apps signed with it, see `pfeddsh sign`")
    ] = None,
    health: Annotated[str | None, typer.Option(help="HOST:PORT of Flower's own gRPC health service")] = None,
) -> None:
    """Take part in a federation as one site, until stopped. Use the same HOME to join again.

    A fifth of a folder's images is held out to measure accuracy. No image ever leaves the site.
    HOME/site.toml stores the options of the first start.

    Example: `pfeddsh join site-a --data images --server fed.example.org:9443 --ca ca.crt`
    """
    import shutil

    with _flower():
        from pfeddsh.live.security.certs import make_node_key
        from pfeddsh.live.security.trusted import read_trusted
        from pfeddsh.live.security.trusted import trust as trust_only
        from pfeddsh.live.site.join import SiteConfig, alone
        from pfeddsh.live.site.join import join as run
    from pfeddsh.storage.files import writable
    from pfeddsh.values import checked

    writable(home)
    before = SiteConfig.load(home).model_dump() if (home / "site.toml").exists() else {}
    given: dict[str, Any] = {"data": data and str(Path(data).expanduser().resolve()), "server": server, "name": name}
    given |= {"insecure": insecure, "allow": allow, "health": health}
    values = {"name": home.resolve().name, **before, **{key: v for key, v in given.items() if v is not None}}
    if "data" not in values:
        raise UserError("where are this site's images? give --data DIR the first time")
    if not Path(str(values["data"])).exists():
        raise UserError(f"--data {values['data']}: no such folder or file")
    site = checked(SiteConfig, values, "command line")
    site.check(home, ca)
    if trust:
        read_trusted(trust)
    with alone(home):  # nothing is touched before: another `join` may be at work
        site.save(home)
        if ca:
            shutil.copyfile(ca, home / "ca.crt")
        if trust:
            trust_only(home, trust)
        make_node_key(home)
        _until_interrupted(lambda: run(home, _say))


def federation(
    folder: Annotated[Path | None, typer.Option(help="folder for all files; default: a temporary folder")] = None,
    rounds: Annotated[int, typer.Option(help="rounds of the first step; the second has two thirds")] = 8,
    seed: Annotated[int, typer.Option(help="determines which images the sites have")] = 0,
) -> None:
    """Run a demo federation on this machine: a coordinator, three sites, then two late sites, on the embedded digits.

    Late sites are served before their first round. After their step, the earlier sites are offered the new version.
    It takes three to five minutes, most of it spent in Flower.
    """
    with _flower():
        import flwr  # noqa: F401  # here, not when its processes fail to start

        from pfeddsh.live.demo import demonstrate
    demonstrate(folder, rounds, seed, console)


def _until_interrupted(run: Any) -> None:
    """SIGTERM and Ctrl-C end with everything stopped; what was done is on disk."""
    import signal

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, stop)
    try:
        run()
    except KeyboardInterrupt:
        _say("stopped; started again, it continues from here")
        raise typer.Exit(0) from None
