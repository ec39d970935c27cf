"""Local-only: every client trains alone from the common initialisation. The control behind PA.

The same visits with the same batches and learning rates as in the federation, nothing sent in either direction.
"""

from collections.abc import Sequence

from torch import Tensor

from pfeddsh.messages import Memory, Message, State
from pfeddsh.methods.base import Method
from pfeddsh.methods.options import Options, PriorAware
from pfeddsh.methods.task import ClientData, Task, Visit


class Local(Method):
    """State and messages are empty. Memory: `theta` and statistics."""

    Settings = PriorAware

    def __init__(self, task: Task, options: Options) -> None:
        super().__init__(task, options)
        self.control = not self.uses_prior

    def init(self) -> State:
        return State()

    def download(self, state: State, clients: Sequence[int]) -> dict[int, Message]:
        return dict.fromkeys(clients, Message())

    def weights(self, message: Message, memory: Memory) -> Tensor:
        return memory.tensors.get("theta", self.task.theta0)

    def local(self, message: Message, data: ClientData, memory: Memory, visit: Visit) -> tuple[Message, Memory]:
        theta = self.weights(message, memory).clone()
        facts = self.train(theta, data, visit)
        return Message(facts=facts), Memory({**memory.tensors, "theta": theta})

    def aggregate(self, state: State, uploads: dict[int, Message]) -> None:
        pass
