"""A status as a coordinator in the middle of its second step would write it, with names that try to be markup."""

import datetime
from typing import Any

HOSTILE = "<img src=x onerror=\"document.title='owned'\">"
START = datetime.datetime(2026, 3, 1, 8, 0, tzinfo=datetime.UTC)


def at(minutes: int) -> str:
    return (START + datetime.timedelta(minutes=minutes)).isoformat()


def client(number: int, name: str, batch: int, state: str, **changes: Any) -> dict[str, Any]:
    known = {"id": number, "name": name, "key": f"SHA256:{number}", "batch": batch, "state": state, "online": True}
    score = {"accuracy": 80.0 + number, "accuracy_first": 79.5 + number}
    if batch > 1:
        score |= {"accuracy_zero_shot": 78.0 + number, "accuracy_alone": 70.0 + number}
    return {**known, "last_seen": at(number), "refused": 0, "offer": "none", **score, **changes}


def sample() -> dict[str, Any]:
    return {
        "schema": 1,
        "time": at(95),
        "moved": {"time": at(95), "step": 2, "phase": "training", "round": 7, "answers": 2},
        "phase": "training",
        "step": 2,
        "round": 7,
        "rounds": 20,
        "eta_seconds": 754.0,
        "queue": [{"name": "latecomer", "since": at(90)}, {"name": HOSTILE, "since": at(91)}],
        "clients": [
            client(0, "north", 1, "served", offer="accepted"),
            client(1, "south-hospital-with-a-rather-long-name", 1, "served", offer="declined", online=False),
            client(2, "east", 1, "quarantined", refused=5, offer="pending", accuracy_first=None),
            client(3, "west", 1, "revoked", online=False, last_seen=None, accuracy=None, accuracy_first=None),
            client(4, HOSTILE, 2, "training", accuracy=None, accuracy_first=None),
            client(5, "[bold]island", 2, "training", refused=1),
        ],
        "offers": {"made": 3, "accepted": 1, "declined": 1, "pending": 1},
        "refused": [
            {"time": at(80), "client": "east", "reason": "theta has values that are not finite"},
            {
                "time": at(94),
                "client": "10.0.0.9",
                "reason": "asked for /v1/control/start-run <script>alert(1)</script>",
            },
        ],
        "bytes": {"down": 48_230_111, "up": 12_400},
        "pa": [12.34, None],
        "ri": [None, -0.26],
    }


def crowd(count: int) -> dict[str, Any]:
    """The same with very many clients, in batches of a hundred."""
    clients = [
        client(
            n,
            f"site-{n:05}",
            1 + n // 100,
            "served",
            accuracy=90.0,
            accuracy_first=89.0,
            accuracy_zero_shot=85.0,
            accuracy_alone=80.0,
        )
        for n in range(count)
    ]
    return sample() | {"clients": clients, "phase": "waiting"}
