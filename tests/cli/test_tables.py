"""Tables on a terminal and in a pipe."""

from __future__ import annotations

import os
import pty
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from watchkeeper.cli import terminal

LONG = "a sentence that is a good deal longer than what a narrow terminal has room for in one line"
PRINTING = f"""
from watchkeeper.cli.terminal import print_table
print_table(["id", "severity", "what"], [["INC-1", "critical", "{LONG}"], ["INC-2", "info", "short"]])
"""


def test_in_a_pipe_a_row_is_one_line_without_escape_codes() -> None:
    done = subprocess.run([sys.executable, "-c", PRINTING], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.splitlines() == [
        "id     severity  what",
        f"INC-1  critical  {LONG}",
        "INC-2  info      short",
    ]


def test_on_a_terminal_critical_is_red_and_long_cells_are_folded() -> None:
    master, slave = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "60"}
    environment.pop("NO_COLOR", None)
    with subprocess.Popen([sys.executable, "-c", PRINTING], stdout=slave, env=environment):
        os.close(slave)
        output = b""
        # A terminal whose other end was closed says so with an error, not with nothing.
        try:
            while part := os.read(master, 65536):
                output += part
        except OSError:
            pass
        finally:
            os.close(master)
    lines = output.decode().splitlines()
    assert "\x1b[1;31mcritical" in output.decode()
    assert len(lines) > 3
    assert all(word in output.decode() for word in LONG.split())


@given(st.lists(st.tuples(st.text("ab ", min_size=1), st.text("12", min_size=1)), min_size=1, max_size=5))
def test_numbers_are_right_aligned(rows: list[tuple[str, str]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        lines: list[str] = []
        patch.setattr(terminal.click, "echo", lines.append)
        terminal.print_table(("name", "n"), rows, names=1)
    assert len({len(line) for line in lines}) == 1


@given(st.lists(st.integers(1, 200), min_size=1, max_size=10), st.integers(40, 300))
def test_fitted_columns_are_not_wider_than_the_terminal(natural: list[int], room: int) -> None:
    widths = terminal.fit_widths(natural, room)
    if widths is None:
        assert (
            sum(width if width <= terminal.MAX_FIXED_WIDTH else 12 for width in natural)
            + terminal.GAP * (len(natural) - 1)
            > room
        )
    else:
        assert sum(widths) + terminal.GAP * (len(natural) - 1) <= room
        assert all(
            got == width for got, width in zip(widths, natural, strict=True) if width <= terminal.MAX_FIXED_WIDTH
        )
