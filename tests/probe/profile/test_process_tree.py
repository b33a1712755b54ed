"""Host resources of a process and its children, from a synthetic /proc and from the real one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from watchkeeper.probe.profile.process_tree import TICKS_PER_SECOND, ProcessTree


def write(proc: Path, pid: int, *, cpu_seconds: float, read_bytes: int, state: str = "R", children: str = "") -> None:
    folder, task = proc / str(pid), proc / str(pid) / "task" / str(pid)
    task.mkdir(parents=True, exist_ok=True)
    stat = f"{pid} (a (b) c) {state} " + " ".join(["0"] * 10 + [str(int(cpu_seconds * TICKS_PER_SECOND)), "0", "0"])
    (folder / "stat").write_text(stat)
    (task / "stat").write_text(stat)
    (task / "children").write_text(children)
    (folder / "statm").write_text("100 50 1 1 0 1 0")
    (folder / "io").write_text(f"rchar: 1\nread_bytes: {read_bytes}\nwrite_bytes: 0\n")


def test_rates_are_those_of_the_whole_tree_since_the_last_reading(tmp_path: Path) -> None:
    write(tmp_path, 10, cpu_seconds=1, read_bytes=0, children="11 ")
    write(tmp_path, 11, cpu_seconds=0, read_bytes=0, state="D")
    tree = ProcessTree(10, tmp_path)
    assert set(tree.read(100.0)) == {"rss_mib"}
    write(tmp_path, 10, cpu_seconds=1.5, read_bytes=0, children="11 ")
    write(tmp_path, 11, cpu_seconds=2, read_bytes=2048 * 1024, state="D")
    rates = tree.read(102.0)
    assert rates["cpu_cores"] == pytest.approx(1.25)
    assert rates["busiest_thread"] == pytest.approx(100)
    assert (rates["read_kbs"], rates["disk_wait"]) == (1024.0, 1.0)
    assert "net_rx_kbs" not in rates


def test_a_process_that_has_exited_has_no_values(tmp_path: Path) -> None:
    tree = ProcessTree(10, tmp_path)
    assert tree.read(1.0) == {}
    assert tree.read(2.0) == {}


def test_this_process_and_its_child_are_one_tree() -> None:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as child:
        assert {os.getpid(), child.pid} <= set(ProcessTree(os.getpid()).pids())
        child.kill()
