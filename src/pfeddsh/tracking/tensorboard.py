"""TensorBoard: event files in the run directory, so that `tensorboard --logdir runs` compares all runs."""

from pathlib import Path
from typing import Any

from pfeddsh.config import Config
from pfeddsh.errors import UserError
from pfeddsh.tracking.settings import settings

FLUSH_SECONDS = 5
COMPARED = ("final/acc_end_mean", "final/pa_mean", "final/ri_last", "final/worst_drop")  # columns of the HParams table


class TensorBoard:
    """Writes its files anew when a run is resumed: they have no other way to forget a point."""

    name = "tensorboard"

    def __init__(self, config: Config, out: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
            from torch.utils.tensorboard.summary import hparams
        except ImportError:
            raise UserError("TensorBoard is not installed; pip install 'pfeddsh[tensorboard]'") from None
        self._create: Any = SummaryWriter
        self._folder = out / "tensorboard"
        self._experiment, self._began, self._ended = hparams(settings(config), dict.fromkeys(COMPARED, 0.0))

    def open(self) -> None:
        for old in self._folder.glob("events.out.tfevents.*"):
            old.unlink()
        self._writer = self._create(str(self._folder), flush_secs=FLUSH_SECONDS)
        self._writer.file_writer.add_summary(self._experiment)
        self._writer.file_writer.add_summary(self._began)

    def log(self, points: dict[str, float], at: int) -> None:
        for name, value in points.items():
            self._writer.add_scalar(name, value, at)

    def close(self, status: str) -> None:
        if status == "FINISHED":
            self._writer.file_writer.add_summary(self._ended)
        self._writer.close()
