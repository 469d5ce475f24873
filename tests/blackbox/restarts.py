"""Restarts nodes one after the other while other tests run: what `pytest --restarts` does besides.

A test's connections go to the two nodes that are left alone for a while; the third is killed or stopped in order and started again, over and over. After some seconds
it is the next node's turn, between two tests. So a test sees no broken connection, and leaders of a third of the durable queues, and now and then
the metadata group's leader, go and come back under it.
"""

from __future__ import annotations

import itertools
import threading
import time

from targets import Target

TURN_S = 10.0  # how long one node is restarted over and over
UP_S = 1.0  # how long it is up in between, so that its queues come back to it
DOWN_S = 0.7


class Restarts:
    """The node whose turn it is, and the thread that restarts it."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.order = itertools.cycle(target.all())
        self.ways = itertools.cycle(["kill", "stop", "kill"])
        self.node = 0
        self.count = 0
        self.error: BaseException | None = None
        self._since = 0.0
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def stable(self) -> list[int]:
        """The nodes that are left alone."""
        return [node for node in self.target.all() if node != self.node]

    def turn(self) -> None:
        """Called before each test: goes on to the next node where it is time to. Raises what went wrong with a restart meanwhile."""
        if self.error:
            raise AssertionError("a node did not come back") from self.error
        if self.node and time.monotonic() - self._since < TURN_S:
            return
        self.end()
        self.node, self._since = next(self.order), time.monotonic()
        self._over.clear()
        self._thread = threading.Thread(target=self._run, args=(self.node,), daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Waits until the node is up for good."""
        self._over.set()
        if self._thread:
            self._thread.join(180)
            assert not self._thread.is_alive(), f"node {self.node} does not come back"
            self._thread = None

    def _run(self, node: int) -> None:
        try:
            while not self._over.is_set():
                if next(self.ways) == "kill":
                    self.target.kill(node)
                else:
                    self.target.stop(node)
                self._over.wait(DOWN_S)
                self.target.start(node)
                self.count += 1
                self._over.wait(UP_S)
        except BaseException as error:  # told before the next test
            self.error = error
