"""Ports for servers that a test starts."""

from __future__ import annotations

import contextlib
import itertools
import os
import socket

HOST = "127.0.0.1"
# Below those that the system gives to clients: of the many connections that come and go beside, none takes a port before its server has it.
FIRST, LAST = 20000, 31999
_candidates = itertools.cycle(range(FIRST, LAST + 1))
# Two runs beside each other look at different ones first.
for _ in range(os.getpid() * 97 % (LAST - FIRST)):
    next(_candidates)


def free_ports(count: int) -> list[int]:
    """Ports that are free for TCP and for UDP, and that no earlier call has given out lately."""
    ports: list[int] = []
    while len(ports) < count:
        candidate = next(_candidates)
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
                stack.enter_context(socket.socket(socket.AF_INET, kind)).bind((HOST, candidate))
            ports.append(candidate)
    return ports
