"""A UDP relay that delays, or drops everything: a link between two nodes as if they were far apart or cut off, without root and without touching the machine's network.

Nodes that are told the relay's port instead of a peer's reach that peer through it. Each sender gets a socket of its own towards the
peer, so that the peer tells them apart; every datagram, in both directions, is held for the delay and keeps its order.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import selectors
import socket
import threading
import time

from targets import HOST


class Relay:
    """Relays datagrams to a port of this machine, each way after a delay, which may be changed at any time. Ends with `close`."""

    def __init__(self, to_port: int, delay_s: float = 0.0) -> None:
        self.to, self.delay_s = (HOST, to_port), delay_s
        self.drops = False  # whether everything is lost, in both directions, without a word
        self.carried = 0
        self.front = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.front.bind((HOST, 0))
        self.port: int = self.front.getsockname()[1]
        self._back: dict[tuple[str, int], socket.socket] = {}
        self._selector = selectors.DefaultSelector()
        self._watch(self.front, None)
        self._held: list[tuple[float, int, socket.socket, tuple[str, int], bytes]] = []
        self._count = itertools.count()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _watch(self, sock: socket.socket, sender: tuple[str, int] | None) -> None:
        sock.setblocking(False)
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
        self._selector.register(sock, selectors.EVENT_READ, sender)

    def _run(self) -> None:
        while not self._over.is_set():
            wait = max(0.0, self._held[0][0] - time.monotonic()) if self._held else 0.1
            for key, _ in self._selector.select(min(wait, 0.1)):
                self._take(key.fileobj, key.data)
            while self._held and self._held[0][0] <= time.monotonic():
                _, _, sock, to, datagram = heapq.heappop(self._held)
                with contextlib.suppress(OSError):  # as a network, it may lose what nobody takes
                    sock.sendto(datagram, to)
                    self.carried += 1

    def _take(self, sock: socket.socket, sender: tuple[str, int] | None) -> None:
        """Takes in all that has come to a socket: from any node at the front, or back for one `sender`."""
        with contextlib.suppress(BlockingIOError, ConnectionRefusedError):
            while True:
                datagram, source = sock.recvfrom(65536)
                if self.drops:
                    continue
                due = time.monotonic() + self.delay_s
                if sender is not None:
                    out, to = self.front, sender
                else:
                    out, to = self._towards(source), self.to
                heapq.heappush(self._held, (due, next(self._count), out, to, datagram))

    def _towards(self, source: tuple[str, int]) -> socket.socket:
        if source not in self._back:
            self._back[source] = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            self._back[source].bind((HOST, 0))
            self._watch(self._back[source], source)
        return self._back[source]

    def close(self) -> None:
        self._over.set()
        self._thread.join(10)
        for sock in (self.front, *self._back.values()):
            sock.close()
        self._selector.close()
