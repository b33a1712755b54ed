"""The Python with PyTorch and what trains on it, which `scripts/torch` makes outside this tree.

`require` gives it, or skips the test by name with the way to get it; also where servers are required, because wheels of
PyTorch for CPUs are not in every index.
`run` runs a program in it that finds this tree's `watchkeeper.instrument`, and nothing else of our own environment.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.support.paths import ROOT

SECONDS = 120


def python() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(cache) / "watchkeeper" / "torch" / "bin" / "python"


def require(*packages: str) -> Path:
    """The interpreter, if these packages are in its environment."""
    missing = [
        name for name in ("torch", *packages) if not list(python().parents[1].glob(f"lib/*/site-packages/{name}"))
    ]
    if not missing:
        return python()
    pytest.skip(f"{', '.join(missing)} is not there. `scripts/torch` gets it; so does `make servers`")


def run(program: str, *arguments: str, folder: Path, needs: tuple[str, ...] = ()) -> str:
    """What the program prints; its warnings and errors fail the test with them."""
    ran = subprocess.run(
        [str(require(*needs)), "-c", program, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS,
    )
    assert ran.returncode == 0, f"{ran.stdout[-2000:]}\n{ran.stderr[-4000:]}"
    return ran.stdout
