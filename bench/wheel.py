"""Sizes of the wheel, the sdist, and an installation of agent or hub with its dependencies.

The wheel is built from this tree with its built console. Dependencies are measured in the environment that runs the
benchmark; those of the tests are not counted.
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
    parser.add_argument("--keep", metavar="DIR", help="write wheel and sdist to this directory")


def measure(options: argparse.Namespace) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(options.keep or temporary)
        wheel, sdist = build("wheel", folder), build("sdist", folder)
        with zipfile.ZipFile(wheel) as archive:
            sizes = {entry.filename: entry.file_size for entry in archive.infolist()}
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
    completed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    # The last line of the output is the path of the result.
    return Path((completed.stdout + completed.stderr).strip().splitlines()[-1])


def requirements(extra: str) -> set[str]:
    """All distributions that an installation needs, without ours."""
    packages: set[str] = set()
    remaining = [("watchkeeper", extra)]
    while remaining:
        name, requested_extra = remaining.pop()
        for text in metadata.requires(name) or ():
            needed, _, marker = text.partition(";")
            is_extra = "extra ==" in marker
            is_requested = bool(requested_extra) and f'"{requested_extra}"' in marker.replace("'", '"')
            match = NAME.match(needed)
            if match is None or (is_extra and not is_requested) or not _is_installed(match[0]):
                continue
            if match[0].lower() not in packages:
                packages.add(match[0].lower())
                remaining.append((match[0], ""))
    return packages


def size_of(name: str) -> int:
    return sum(Path(str(file.locate())).stat().st_size for file in _files(name))


def _files(name: str) -> Iterable[metadata.PackagePath]:
    return (file for file in metadata.files(name) or () if Path(str(file.locate())).is_file())


def _is_installed(name: str) -> bool:
    """Whether a package is installed; those for other systems or older Pythons are not."""
    try:
        metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return False
    return True
