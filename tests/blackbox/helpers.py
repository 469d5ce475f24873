"""What several test files share: parameters, and checks that read as a sentence."""

from __future__ import annotations

import pytest

from amqp import ChannelClosed, Channel

# For tests that make sense only where operations go to different nodes.
spread_only = pytest.mark.parametrize("nodes", ["spread"], indirect=True)


def missing(channel: Channel, queue: str) -> bool:
    """Whether a queue does not exist; the channel is closed by the question if so."""
    try:
        channel.exists(queue)
    except ChannelClosed as closed:
        assert closed.code == 404, closed
        return True
    return False


def exchange_missing(channel: Channel, exchange: str) -> bool:
    """Whether an exchange does not exist; the channel is closed by the question if so."""
    try:
        channel.exchange_declare(exchange, passive=True)
    except ChannelClosed as closed:
        assert closed.code == 404, closed
        return True
    return False


def spread_evenly(counts: list[int], shares: list[float], tolerance: float) -> None:
    """Asserts that counts are near their shares of the total, by an absolute tolerance."""
    total = sum(counts)
    for count, share in zip(counts, shares, strict=True):
        assert abs(count / total - share) <= tolerance, f"{counts} of {total}: expected shares {shares} within {tolerance}"
