"""What travels between coordinator and site: a JSON header and one `Message`, as one string of bytes."""

import json
from dataclasses import asdict
from typing import Any

from pfeddsh.federation.workbench import Call
from pfeddsh.messages import BadMessage, Memory, Message, parsed
from pfeddsh.methods.task import Visit

FAREWELL = "farewell"  # the last one: what was deleted of a site that leaves
LATER = "later"  # in place of ok: the site does not train now, or no more
HELLO = "hello"  # the first message to a node: who are you, and what do you bring


def encode(header: dict[str, Any], message: Message) -> bytes:
    return _head(header) + message.encode()


def _head(header: dict[str, Any]) -> bytes:
    text = json.dumps(header).encode()
    return len(text).to_bytes(4, "big") + text


def decode(body: bytes) -> tuple[dict[str, Any], Message]:
    """The header and the message, or `BadMessage`."""
    length = int.from_bytes(body[:4], "big")
    try:
        header = parsed(body[4 : 4 + length])
    except ValueError as error:
        raise BadMessage(f"not a readable header: {error}") from error
    if not isinstance(header, dict):
        raise BadMessage("not a readable header: no object")
    message = Message.decode(body[4 + length :])
    if not isinstance(message.facts, dict):
        raise BadMessage("facts are no object")
    return header, message


def call_head(call: Call, settings: dict[str, Any]) -> bytes:
    """What goes before a call's message. Its memory the site keeps; from `settings` it builds its method."""
    return _head({"job": call.job, "visit": asdict(call.visit), "settings": settings})


def decode_call(header: dict[str, Any], message: Message, memory: Memory) -> Call:
    return Call(str(header["job"]), Visit(**header["visit"]), message, memory)
