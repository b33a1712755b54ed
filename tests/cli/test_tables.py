"""A table on a terminal and in a pipe."""

from __future__ import annotations

import os
import pty
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from watchkeeper.cli import tables

LONG = "a sentence that is a good deal longer than what a narrow terminal has room for in one line"
PRINTING = f"""
from watchkeeper.cli.tables import print_table
print_table(["id", "severity", "what"], [["INC-1", "critical", "{LONG}"], ["INC-2", "info", "short"]])
"""


def test_in_a_pipe_a_row_is_one_whole_line_without_escape_codes() -> None:
    done = subprocess.run([sys.executable, "-c", PRINTING], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.splitlines() == [
        "id     severity  what",
        f"INC-1  critical  {LONG}",
        "INC-2  info      short",
    ]


def test_on_a_terminal_the_gravest_is_red_and_long_cells_are_folded() -> None:
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "60"}
    environment.pop("NO_COLOR", None)
    with subprocess.Popen([sys.executable, "-c", PRINTING], stdout=theirs, env=environment):
        os.close(theirs)
        said = b""
        # A terminal whose other end was closed says so with an error, not with nothing.
        try:
            while part := os.read(ours, 65536):
                said += part
        except OSError:
            pass
        finally:
            os.close(ours)
    lines = said.decode().splitlines()
    assert "\x1b[1;31mcritical" in said.decode()
    assert len(lines) > 3
    assert all(word in said.decode() for word in LONG.split())


@given(st.lists(st.tuples(st.text("ab ", min_size=1), st.text("12", min_size=1)), min_size=1, max_size=5))
def test_numbers_stand_to_the_right_of_their_column(rows: list[tuple[str, str]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        lines: list[str] = []
        patch.setattr(tables.click, "echo", lines.append)
        tables.print_table(("name", "n"), rows, names=1)
    assert len({len(line) for line in lines}) == 1


@given(st.lists(st.integers(1, 200), min_size=1, max_size=10), st.integers(40, 300))
def test_columns_that_fit_take_no_more_than_the_terminal_has(wanted: list[int], room: int) -> None:
    found = tables.fit_widths(wanted, room)
    if found is None:
        assert (
            sum(width if width <= tables.MAX_FIXED_WIDTH else 12 for width in wanted) + tables.GAP * (len(wanted) - 1)
            > room
        )
    else:
        assert sum(found) + tables.GAP * (len(wanted) - 1) <= room
        assert all(got == width for got, width in zip(found, wanted, strict=True) if width <= tables.MAX_FIXED_WIDTH)
