"""Large tensors that will never change again: written once, then mapped from their files, not held in memory."""

from collections.abc import Iterable
from pathlib import Path

from safetensors import safe_open
from torch import Tensor

from pfeddsh.messages import Record
from pfeddsh.storage.records import Damaged, digest, write_record

NAME = "tensor"


class Settled:
    """Files named by the checksum of what they hold."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def write(self, tensor: Tensor) -> tuple[str, Tensor]:
        """The name of its file, and the tensor as mapped from there."""
        record = Record({NAME: tensor.contiguous()})
        name = f"{digest(record)[:32]}.safetensors"
        if not (self._folder / name).exists():
            self._folder.mkdir(exist_ok=True)
            write_record(self._folder / name, record)
        return name, self.read(name)

    def read(self, name: str) -> Tensor:
        path = self._folder / name
        try:
            with safe_open(path, "pt") as file:
                tensor: Tensor = file.get_tensor(NAME)
            sound = digest(Record({NAME: tensor}))[:32] == path.stem
        except Exception as error:  # of whatever kind: the file is not what was written
            raise Damaged(f"{path} cannot be read: {str(error)[:200]}") from error
        if not sound:
            raise Damaged(f"{path} does not match its checksum")
        return tensor

    def sweep(self, named: Iterable[str]) -> None:
        """Remove files that no snapshot names."""
        keep = set(named)
        for path in self._folder.glob("*.safetensors"):
            if path.name not in keep:
                path.unlink()
