"""Ports for servers of tests: below those that the system gives to others, so nobody takes one before it is used."""

import itertools
import os
import socket

FIRST, EACH = 20_000, 1_500  # ports of one pytest worker
_worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:]) % 8
_left = itertools.cycle(range(FIRST + EACH * _worker, FIRST + EACH * (_worker + 1)))


def free_port() -> int:
    """One that nobody listens on, and no other test of this process has had lately."""
    for port in _left:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise AssertionError("never")
