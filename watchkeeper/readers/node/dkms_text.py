"""Read pasted output of `dkms status`: for which kernels the NVIDIA module is installed.

The doctor compares them with the running kernel and with the newest one, as far as the text names them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from watchkeeper.readers.node.kernel_modules import version_key

# nvidia/550.54.15, 5.15.0-105-generic, x86_64: installed      nvidia, 535.129.03, 5.4.0-150-generic, x86_64: built
# nvidia/550.54.15: added
ENTRY = re.compile(
    r"^\s*(?P<module>[A-Za-z][\w.+-]*)(?:/|, )[\w.+~:-]+(?:, (?P<kernel>\d+\.\d+[\w.+~-]*), \w+)?: "
    r"(?P<state>added|built|installed|broken)\b(?P<rest>.*)$"
)
# Not nvidia-fs and nvidia-peermem.
NVIDIA = re.compile(r"nvidia(?:-(?:open|current|srv|server|dkms|\d+))*$")
RELEASE = r"\d+\.\d+\.\d+[\w.+~-]*"
# Linux gpu07 5.15.0-105-generic #115-Ubuntu SMP      Kernel: Linux 5.15.0-105-generic      (uname -a, hostnamectl)
RUNNING = re.compile(rf"^Linux \S+ (?P<kernel>{RELEASE}) #\d|^\s*Kernel: Linux (?P<kernel2>{RELEASE})\s*$")
# The lines of `ls /lib/modules` and of `uname -r`, whose command is on the line before
NAMES = re.compile(rf"^(?:(?:/lib/modules/)?{RELEASE}/?\s*)+$")
# ii  linux-image-5.15.0-107-generic  5.15.0-107.117      kernel-core-5.14.0-503.22.1.el9_5.x86_64
PACKAGE = re.compile(rf"^(?:ii +)?(?:linux-image(?:-unsigned)?|kernel(?:-core)?)-(?P<kernel>{RELEASE})")


@dataclass(slots=True)
class ModuleBuilds:
    """What the text says about the NVIDIA module; `line` is that of its last entry, 0 if it has none.

    `kernels` are all that the text names: running and installed ones, and those for which DKMS has built any module.
    """

    installed: set[str] = field(default_factory=set)
    kernels: set[str] = field(default_factory=set)
    running: set[str] = field(default_factory=set)
    line: int = 0
    differs_line: int = 0

    @property
    def newest(self) -> str | None:
        return max(self.kernels, key=version_key, default=None)


def read_builds(lines: Sequence[str]) -> ModuleBuilds:
    builds = ModuleBuilds()
    for number, (before, line) in enumerate(zip(["", *lines], lines, strict=False), 1):
        if (entry := ENTRY.match(line)) is not None:
            _add_entry(builds, entry, number)
        elif (match := RUNNING.match(line)) is not None:
            builds.running.add(match["kernel"] or match["kernel2"])
        elif (match := PACKAGE.match(line)) is not None:
            builds.kernels.add(match["kernel"])
        elif NAMES.match(line) is not None:
            names = {word.removeprefix("/lib/modules/").rstrip("/") for word in line.split()}
            (builds.running if "uname" in before else builds.kernels).update(names)
    builds.kernels |= builds.running
    return builds


def _add_entry(builds: ModuleBuilds, entry: re.Match[str], number: int) -> None:
    kernel = entry["kernel"]
    builds.kernels |= {kernel} if kernel else set()
    if not NVIDIA.match(entry["module"]):
        return
    builds.line = number
    builds.installed |= {kernel} if kernel and entry["state"] == "installed" else set()
    if "Diff between" in entry["rest"]:
        builds.differs_line = number
