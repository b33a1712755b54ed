"""Sizes of what people install: the wheel, the sdist, and an install of agent or hub with everything it needs.

The wheel is built from this tree, with the console as it is built here. Dependencies are counted as they lie in the
environment that runs the bench; what only the tests need does not count.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).parent.parent
NAME = re.compile(r"[A-Za-z0-9_.-]+")
PARTS = ("packs", "web/static")


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--keep", metavar="DIR", help="leave wheel and sdist there")


def measure(options: argparse.Namespace) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as made:
        folder = Path(options.keep or made)
        wheel, sdist = build("wheel", folder), build("sdist", folder)
        with zipfile.ZipFile(wheel) as opened:
            sizes = {one.filename: one.file_size for one in opened.infolist()}
        numbers: dict[str, float] = {"wheel_bytes": wheel.stat().st_size, "sdist_bytes": sdist.stat().st_size}
    installed = sum(sizes.values())
    numbers["installed_bytes"] = installed
    for part in PARTS:
        inside = [size for name, size in sizes.items() if name.startswith(f"watchkeeper/{part}/")]
        numbers[f"{part.replace('/', '_')}_bytes"] = sum(inside)
    for extra in ("", "hub"):
        needed = requirements(extra)
        numbers[f"{extra or 'agent'}_install_bytes"] = installed + sum(map(size_of, needed))
        numbers[f"{extra or 'agent'}_packages"] = len(needed)
    return numbers


def build(target: str, folder: Path) -> Path:
    command = [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    # The path of what was built is its last line, wherever it writes its lines.
    return Path((done.stdout + done.stderr).strip().splitlines()[-1])


def requirements(extra: str) -> set[str]:
    """Every distribution that an install brings along, ours not counted."""
    found: set[str] = set()
    waiting = [("watchkeeper", extra)]
    while waiting:
        name, wanted = waiting.pop()
        for text in metadata.requires(name) or ():
            needed, _, marker = text.partition(";")
            is_extra = "extra ==" in marker
            chosen = bool(wanted) and f'"{wanted}"' in marker.replace("'", '"')
            match = NAME.match(needed)
            if match is None or (is_extra and not chosen) or not _is_here(match[0]):
                continue
            if match[0].lower() not in found:
                found.add(match[0].lower())
                waiting.append((match[0], ""))
    return found


def size_of(name: str) -> int:
    return sum(Path(str(file.locate())).stat().st_size for file in _files(name))


def _files(name: str) -> Iterable[metadata.PackagePath]:
    return (file for file in metadata.files(name) or () if Path(str(file.locate())).is_file())


def _is_here(name: str) -> bool:
    """Packages for other systems or older Pythons are named, and not there."""
    try:
        metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return False
    return True
