"""Nodes for tests of `preflight`: a program that replaces `watchkeeper` on every node, and its reports."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from tests.support.paths import ROOT

# Depending on the name of its node it prints a report, hangs, or runs the real command.
PROGRAM = """\
import os, pathlib, sys, time
sys.path.insert(0, {root!r})
node = pathlib.Path({folder!r}, os.environ.get("SLURMD_NODENAME") or os.environ["NODE"])
if node.with_suffix(".hang").exists():
    time.sleep(60)
if node.with_suffix(".json").exists() and "fabric" not in sys.argv:
    print(node.with_suffix(".json").read_text())
    sys.exit(0)
from watchkeeper.cli.main import main
main(sys.argv[1:])
"""


def command(folder: Path) -> str:
    path = folder / "node.py"
    path.write_text(PROGRAM.format(root=str(ROOT), folder=str(folder)))
    return f"{sys.executable} {path}"


def report(*, gpus: int = 8, verdict: str = "passed", **results: str) -> str:
    """A report of `diag -r 1 --json`; `results` are verdicts by test, of the first GPU."""
    names = [{"uuid": f"GPU-{index}", "index": index, "model": "NVIDIA H200"} for index in range(gpus)]
    verdicts = {"nvml": "pass", **results}
    rows: list[dict[str, Any]] = [
        {"test": test, "gpu": "GPU-0" if gpus else None, "verdict": word, "why": f"because of {test}"}
        for test, word in verdicts.items()
    ]
    return json.dumps({"verdict": verdict, "gpus": names, "results": rows})
