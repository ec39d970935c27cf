"""Uploads that carry only some entries of a vector, chosen by the client, and their mean entry by entry.

Only what is chosen travels, with one bit for each group of entries to say which: the payload is what would really be
sent. Its length differs between clients, so the check compares it with the bits before anything is used.
"""

from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor

from pfeddsh.messages import Message, check


class Partial:
    """A vector whose entries are sent in groups; `group` says which of them each entry belongs to."""

    def __init__(self, group: Tensor) -> None:
        self.group = group
        self.groups = int(group.max()) + 1

    def pack(self, vector: Tensor, sent: Tensor) -> dict[str, Tensor]:
        """The entries of the groups marked in `sent`, and which these are."""
        return {"values": vector[sent[self.group]], "sent": torch.from_numpy(np.packbits(sent.cpu().numpy()))}

    def entries(self, upload: Message) -> Tensor:
        """Which entries of the vector an upload carries."""
        sent = torch.from_numpy(np.unpackbits(upload["sent"].cpu().numpy(), count=self.groups)).bool()
        return sent[self.group]

    def check(self, upload: Message) -> None:
        """Raise `BadMessage` unless there is a finite value for every entry that is said to be there."""
        bits = torch.zeros((self.groups + 7) // 8, dtype=torch.uint8)
        check(Message({name: upload[name] for name in ("sent",) if name in upload}), Message({"sent": bits}))
        values = torch.zeros(int(self.entries(upload).sum()))
        check(upload, Message({"sent": bits, "values": values}, {"samples": 1}))

    def mean(self, previous: Tensor, uploads: Iterable[Message]) -> Tensor:
        """Unweighted mean over those who sent an entry, the previous value where nobody did.

        Taken relative to the first who sent it, so that the mean of equal values is that value to the bit.
        """
        parts = [(self.entries(upload), upload["values"]) for upload in uploads]
        first, excess, count = previous.clone(), torch.zeros_like(previous), torch.zeros_like(previous)
        for entries, values in reversed(parts):
            first[entries] = values
        for entries, values in parts:
            excess[entries] += values - first[entries]
            count += entries
        return first + excess / count.clamp_(min=1)
