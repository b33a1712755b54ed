"""Will the NVIDIA driver still be there after the next boot?

A kernel update without a matching module is found out at the reboot that was meant to fix something else.
`next_kernel` says which kernel the machine would boot, `has_nvidia` whether a module for it lies on disk.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

# updates/dkms/nvidia.ko.zst: kernel/drivers/…      (modules.dep, written by depmod)
NVIDIA_MODULE = re.compile(r"(?:^|/)nvidia\.ko(?:\.\w+)?:", re.MULTILINE)
IMAGES = ("vmlinuz-*", "vmlinux-*", "Image-*")


@dataclass(frozen=True, slots=True)
class NextBoot:
    """The newest installed kernel, and whether it has an NVIDIA module; None where depmod has left no list."""

    release: str
    has_nvidia: bool | None
    is_running: bool


def next_kernel(root: Path, running: str | None) -> NextBoot | None:
    """The newest kernel in /boot, else the newest one with modules; None if neither says anything.

    A boot loader that was told to start another one is not asked: its settings differ with each distribution.
    """
    found = {path.name.partition("-")[2] for pattern in IMAGES for path in (root / "boot").glob(pattern)}
    releases = {release for release in found if not release.endswith((".old", ".bak")) and "rescue" not in release}
    if not releases:
        releases = {path.parent.name for path in (root / "lib/modules").glob("*/modules.dep")}
    if not releases:
        return None
    newest = max(releases, key=version_order)
    return NextBoot(newest, has_nvidia(root, newest), newest == running)


def has_nvidia(root: Path, release: str) -> bool | None:
    try:
        return bool(NVIDIA_MODULE.search((root / "lib/modules" / release / "modules.dep").read_text(errors="replace")))
    except OSError:
        return None


def version_order(release: str) -> tuple[tuple[int, int, str], ...]:
    """Numbers by size, the rest by letter: 6.8.0-9 before 6.8.0-45."""
    parts = re.findall(r"\d+|[a-zA-Z]+", release)
    return tuple((1, int(part), "") if part.isdigit() else (0, 0, part) for part in parts)
