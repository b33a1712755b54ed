"""Check whether the kernel of the next boot has an NVIDIA driver.

After a kernel update without a matching module, the next reboot leaves the node without GPUs. `find_next_kernel` finds
the kernel that the node would boot, `has_nvidia` checks whether its NVIDIA module is installed.
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
    """The newest installed kernel, and whether it has an NVIDIA module; None if depmod wrote no list."""

    release: str
    has_nvidia: bool | None
    is_running: bool


def find_next_kernel(root: Path, running: str | None) -> NextBoot | None:
    """The newest kernel in /boot, or else the newest with modules; None if neither is found."""
    # Boot loader settings that select another kernel are not read: they differ between distributions.
    image_releases = {path.name.partition("-")[2] for pattern in IMAGES for path in (root / "boot").glob(pattern)}
    releases = {
        release for release in image_releases if not release.endswith((".old", ".bak")) and "rescue" not in release
    }
    if not releases:
        releases = {path.parent.name for path in (root / "lib/modules").glob("*/modules.dep")}
    if not releases:
        return None
    newest = max(releases, key=version_key)
    return NextBoot(newest, has_nvidia(root, newest), newest == running)


def has_nvidia(root: Path, release: str) -> bool | None:
    try:
        return bool(NVIDIA_MODULE.search((root / "lib/modules" / release / "modules.dep").read_text(errors="replace")))
    except OSError:
        return None


def version_key(release: str) -> tuple[tuple[int, int, str], ...]:
    """A sort key with numbers by value: 6.8.0-9 before 6.8.0-45."""
    parts = re.findall(r"\d+|[a-zA-Z]+", release)
    return tuple((1, int(part), "") if part.isdigit() else (0, 0, part) for part in parts)
