"""Every command of warrenctl is run by a test, and its help has an example: who adds one adds its tests."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Iterator

import pytest

REPOSITORY = Path(__file__).resolve().parents[3]
CTL = Path(os.environ.get("WARRENCTL", REPOSITORY / "target/release/warrenctl"))


def usage(*command: str) -> str:
    result = subprocess.run([str(CTL), *command, "--help"], capture_output=True, text=True, timeout=20, stdin=subprocess.DEVNULL)
    assert result.returncode == 0, result.stderr
    return result.stdout


def leaves(*command: str) -> Iterator[tuple[tuple[str, ...], str]]:
    """Commands that have none below them, with their help."""
    text = usage(*command)
    below = re.search(r"^Commands:\n((?:  .*\n|\n)+)", text, re.MULTILINE)
    names = re.findall(r"^  ([a-z][a-z_-]*)", below[1], re.MULTILINE) if below else []
    if not names:
        yield command, text
    for name in names:
        if name != "help":
            yield from leaves(*command, name)


@pytest.fixture(scope="module")
def commands():
    found = dict(leaves())
    assert len(found) > 120 and ("queue", "list") in found and ("list_queues",) in found, sorted(found)
    return found


def test_every_command_is_run_by_a_test(commands):
    text = "\n".join(file.read_text() for file in sorted(Path(__file__).parent.glob("test_*.py")) if file.name != Path(__file__).name)
    missing = []
    for command in commands:
        words = r'",\s*"'.join(re.escape(word) for word in command)
        if not re.search(f'"{words}"', text):
            missing.append(" ".join(command))
    assert not missing, missing


def test_every_help_has_an_example_that_is_taken(commands):
    for command, text in commands.items():
        examples = re.findall(r"^Example: warrenctl (.*)$", text, re.MULTILINE)
        assert examples, command
        assert command[-1] in examples[0].split(), (command, examples)  # operator policies share the help of policies
