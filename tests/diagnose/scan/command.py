"""Run the command `scan` in a process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def run(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "watchkeeper.cli.main", *arguments]
    return subprocess.run(line, env=environment, capture_output=True, text=True, check=False, timeout=50)


def scan(environment: dict[str, str], root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A scan of a node with an empty kernel log and little memory."""
    (root / "proc").mkdir(exist_ok=True)
    (root / "proc/meminfo").write_text("MemTotal: 100 kB\nMemAvailable: 50 kB\n")
    (root / "kmsg").touch()
    where = ["--kmsg", str(root / "kmsg"), "--host-root", str(root), "--watch", "0"]
    return run(environment, "scan", *where, *arguments)
