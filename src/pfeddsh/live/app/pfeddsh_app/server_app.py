"""Runs the coordinator of the folder that `pfeddsh serve` names."""

from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    from pfeddsh.live.coordinator.orphan import end_without
    from pfeddsh.live.coordinator.run import coordinate
    from pfeddsh.live.transport import FlowerTransport

    folder, authenticated = Path(str(context.run_config["folder"])), bool(context.run_config["authenticated"])
    end_without(folder)
    coordinate(folder, FlowerTransport(grid), authenticated)
