"""Programs out of Debian packages that are unpacked and not installed: nothing is started, and nothing of the machine changes.

Where the program is, is told by the environment: `WARREN_PACKAGES`, a folder with one folder for each package, which `cargo xtask test` fills.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest


def program(package: str, path: str) -> Path:
    """A file of a package. Without the folder (pytest that somebody runs alone) the test is passed over; what is not in the folder is a fault."""
    folder = os.environ.get("WARREN_PACKAGES")
    if folder is None:
        pytest.skip("WARREN_PACKAGES names no folder of unpacked packages: run through `cargo xtask test blackbox`")
    found = Path(folder) / package / path
    assert found.is_file(), f"{found} is not there"
    return found
