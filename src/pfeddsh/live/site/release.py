"""Every reply of a site passes here on its way out: what its policy withholds does not leave."""

from torch import Tensor

from pfeddsh.live.site.policy import Policy, PolicyRefusal
from pfeddsh.mechanisms.embedding import rounded
from pfeddsh.mechanisms.privacy import Uniform, from_system, laplace, protect
from pfeddsh.messages import BadMessage, Message


def release(
    policy: Policy, job: str, call: Message, reply: Message, samples: int, uniform: Uniform = from_system
) -> Message:
    """The reply as it may leave; facts name what was withheld. Only tests draw from anything but the system."""
    facts, tensors = dict(reply.facts), dict(reply.tensors)
    if job == "local":
        tensors = _upload(policy, call, reply, uniform)
        facts = facts if policy.measures else {"samples": facts["samples"]}
    elif job in ("card", "settle"):
        kept = policy.withholds(tensors)
        tensors = {name: t for name, t in tensors.items() if name not in kept}
        if "histogram" in tensors:
            tensors["histogram"] = _histogram(policy, tensors["histogram"], samples, uniform)
    elif job == "receive" and not policy.measures:
        facts = {"accepted": False}
    elif job == "judge" and not policy.measures:
        facts = {}
    elif job == "score" and not policy.measures:
        raise PolicyRefusal("this site's policy lets no measurements leave")
    if lacking := sorted(reply.tensors.keys() - tensors.keys()):
        facts["withheld"] = lacking
    return Message(tensors, facts)


def _upload(policy: Policy, call: Message, reply: Message, uniform: Uniform) -> dict[str, Tensor]:
    if not policy.protection.on:
        return reply.tensors
    try:
        return protect(call, reply, policy.protection, uniform).tensors
    except BadMessage as error:
        raise PolicyRefusal(
            f"this site's policy clips uploads, and this method's cannot be clipped: {error}"
        ) from error


def _histogram(policy: Policy, shares: Tensor, samples: int, uniform: Uniform) -> Tensor:
    if policy.histogram == "noised":
        scale = 2 / (max(1, samples) * policy.histogram_epsilon)
        return rounded(shares + scale * laplace(uniform, len(shares)).to(shares), 0.0)
    return rounded(shares, policy.rounding) if policy.histogram == "rounded" else shares
