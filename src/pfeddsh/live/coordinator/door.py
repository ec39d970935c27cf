"""The door: whatever a site sends is bounded and understood here, or refused; nothing else enters the state.

Shape is checked against what the method expects, meaning by what a name stands for: shares, statistics, counts. Whoever
sends something that cannot even be checked is refused like everybody else, so that no exception is a way in.
"""

import math
from typing import Any

from torch import Tensor

from pfeddsh.federation.workbench import CONTROL
from pfeddsh.live.coordinator.roster import Member
from pfeddsh.messages import BadMessage, Message, check, withheld
from pfeddsh.methods.base import Method
from pfeddsh.models.base import split_statistics

MOST = 10**8  # images anyone can claim to have
LARGEST = 1e6  # of any number in a tensor that nothing else bounds
FEATURE = 100.0  # mean or standard deviation of what a normalisation meets: of weights that work, some ten
ANSWERS = ("receive", "score", "keep", "judge")  # to these a few numbers are told, and no tensors
RULES = ("acc", "acc_unguarded")  # what accuracies a score may tell
CEILING = 100  # times the norm of the first model: no sequence of uploads leads beyond
WEIGHTS = ("delta", "values")  # under these names weights arrive that were not sent under the same
FACTS = 32  # numbers beside the tensors of an upload
SLACK = 1e-3  # by which shares may miss one in sum


class Door:
    """Between the network and the federation."""

    def __init__(self, method: Method, norm_limit: float) -> None:
        self._method, self._norm_limit = method, norm_limit
        self._ceiling = CEILING * extent(Message({"theta": method.task.theta0}))

    def admit(self, job: str, who: Member, sent: Message, reply: Message) -> Message:
        """The reply with what this job may tell and nothing more; `BadMessage` for anything else."""
        try:
            if job in ANSWERS:
                return Message(facts=_answer(job, reply.facts, who.test or MOST))
            facts, kept = _numbers(reply.facts, who.train or MOST), self._withheld(job, reply)
            reply = Message(reply.tensors, facts | ({"withheld": kept} if kept else {}))
            if job == "local":
                self._upload(sent, reply)
            elif job == "card":
                self._method.check_card(reply)
            elif kept:
                return Message(facts={"withheld": kept})  # a report that is not made counts like one of a client away
            else:
                check(reply, self._method.expected_report())
            for name, tensor in reply.tensors.items():
                self._meaning(name, tensor, who.train or MOST)
            return reply
        except BadMessage:
            raise
        except Exception as error:
            raise BadMessage(f"cannot be checked: {type(error).__name__}") from error

    def _withheld(self, job: str, reply: Message) -> list[str]:
        """What of a card or a report the site's policy keeps there."""
        like = {"card": self._method.expected_card, "settle": self._method.expected_report}.get(job)
        return sorted(withheld(reply) & like().tensors.keys()) if like else []

    def _upload(self, sent: Message, upload: Message) -> None:
        self._method.check_upload(sent, upload)
        norm, own = change(sent, upload), extent(sent)
        if not norm <= self._norm_limit * own:
            raise BadMessage(f"norm {norm:.3g}, more than {self._norm_limit:g} times that of the model, {own:.3g}")
        if not norm + own <= self._ceiling:
            raise BadMessage(f"norm {norm:.3g}: the model would leave all bounds ({self._ceiling:.3g})")

    def _meaning(self, name: str, tensor: Tensor, images: int) -> None:
        if not tensor.is_floating_point():
            return
        if name == "statistics":
            for mean, variance in split_statistics(self._method.model, tensor):
                _hold(bool((variance >= 0).all()), "statistics has a negative variance")
                _hold(bool((variance <= FEATURE**2).all()), f"statistics has a deviation beyond {FEATURE:g}")
                _hold(bool((mean.abs() <= FEATURE).all()), f"statistics has a mean beyond {FEATURE:g}")
        elif name == "histogram":
            _hold(bool((tensor >= 0).all()), "histogram has a negative share")
            _hold(abs(float(tensor.double().sum()) - 1) <= SLACK, "histogram does not sum to one")
        elif name == "counts":
            _hold(bool((tensor >= 0).all()), "counts has a negative count")
            _hold(float(tensor.double().sum()) <= images, f"counts has more than the {images} images that were told")
        _hold(bool((tensor.abs() <= LARGEST).all()), f"{name} has values beyond {LARGEST:g}")


def change(sent: Message, upload: Message) -> float:
    """The norm of what an upload changes in the weights that were sent."""
    total = 0.0
    for name, tensor in upload.tensors.items():
        before = sent.tensors.get(name)
        if before is not None and before.shape == tensor.shape:
            total += float((tensor.double() - before.double()).square().sum())
        elif name in WEIGHTS:
            total += float(tensor.double().square().sum())
    return math.sqrt(total)


def extent(sent: Message) -> float:
    """The norm of what was sent; that of a fresh model of the size for one that is nearly zero."""
    floats = [tensor.double() for tensor in sent.tensors.values() if tensor.is_floating_point()]
    size = sum(tensor.numel() for tensor in floats)
    return max(math.sqrt(sum(float(t.square().sum()) for t in floats)), math.sqrt(size) * 0.01, 1.0)


def introduction(facts: dict[str, Any]) -> tuple[str, str, int, int]:
    """Key, name, training and test images that a site tells in reply to hello."""
    key, name = facts.get("key"), facts.get("name")
    if not (isinstance(key, str) and isinstance(name, str) and 0 < len(key) <= 200):
        raise BadMessage("it tells no name and key")
    return key, plain(name), _count(facts, "train", MOST), _count(facts, "test", MOST)


def plain(text: str, length: int = 64) -> str:
    """A name or a reason as anyone may see it on a screen."""
    return "".join(character for character in text[:length] if character.isprintable())


def _answer(job: str, facts: dict[str, Any], images: int) -> dict[str, Any]:
    """What the answer to an offer, a score and the end of a step may tell."""
    if job == "keep":
        return {}
    if job == "judge":
        share = facts.get("share", 0)
        _hold(_is_number(share) and 0 <= share <= 1, "the share is not a number from 0 to 1")
        return {"share": float(share)} if "share" in facts else {}  # its policy may withhold it
    if job == "receive":
        _hold(isinstance(facts.get("accepted"), bool), "the answer to an offer is neither yes nor no")
        return {"accepted": facts["accepted"]}
    correct = facts.get("correct")
    if not (isinstance(correct, dict) and "acc" in correct and set(correct) <= set(RULES)):
        raise BadMessage("not a score")
    count = _count(facts, "count", images)
    told = {rule: _count(correct, rule, count, least=0) for rule in correct}
    alone = {CONTROL: _count(facts, CONTROL, count, least=0)} if CONTROL in facts else {}
    return {"correct": told, "count": count, **alone}


def _numbers(facts: dict[str, Any], images: int) -> dict[str, Any]:
    """The facts of an upload: how many images, and other numbers, such as the loss, which are told and not trusted."""
    told = {name: value for name, value in list(facts.items())[:FACTS] if _is_number(value) and len(name) <= 64}
    return told | ({"samples": _count(facts, "samples", images)} if "samples" in facts else {})


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e12


def _count(facts: dict[str, Any], name: str, most: int, least: int = 1) -> int:
    value = facts.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        shown = value if isinstance(value, int) and abs(value) < 10**12 else type(value).__name__
        raise BadMessage(f"{name} is {shown}, expected a whole number from {least} to {most}")
    return value


def _hold(holds: bool, otherwise: str) -> None:
    if not holds:
        raise BadMessage(otherwise)
