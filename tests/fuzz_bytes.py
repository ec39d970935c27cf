"""Ways to spoil bytes: cuts, copies, flips, insertions of what parsers stumble over."""

import math

TOKENS = [
    b"[" * 3000, b"{" * 3000, b'{"a":' * 2000, b"NaN", b"-Infinity", b"1e400", b"9" * 5000, b"null", b"true",
    b"\xff\xfe", b"\0", b'"', b"\\ud800", b"-1", b"0.5", b"[]", b"{}", b"\xf0\x9f\x92\xa9", b"__metadata__",
    b"data_offsets", b",",
]  # fmt: skip
NUMBERS = [
    0, -1, 1, 10**9, 10**400, -(10**400), True, None, "7", [1], {}, 0.5, math.nan, math.inf, 1e308,
]  # fmt: skip


def spoilt(draw, data):
    """A few cuts, copies, flips and insertions; half of them near the beginning, where headers are."""
    data = bytearray(data)
    for _ in range(draw.choice((1, 1, 1, 2, 4))):
        at, kind = draw.randrange(len(data) + 1), draw.randrange(6)
        if draw.random() < 0.5:
            at = min(at, draw.randrange(400))
        end = min(len(data), at + draw.choice((1, 2, 8, 64, 1000)))
        if kind == 0 and data:
            data[at % len(data)] ^= 1 << draw.randrange(8)
        elif kind == 1:
            del data[at:end]
        elif kind == 2:
            data[at:at] = data[at:end]
        elif kind == 3:
            data[at:at] = draw.choice(TOKENS)
        elif kind == 4:
            data[at:end] = draw.choice(TOKENS)
        else:
            data[at:end] = draw.randbytes(end - at)
    return bytes(data)
