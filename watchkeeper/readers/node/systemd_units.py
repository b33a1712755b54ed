"""The state of systemd units, as `systemctl show` prints it.

`ARGUMENTS` is what to run; blocks are divided by empty lines, one `Key=value` a line. A unit that is not
installed answers too, with LoadState=not-found.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

# What a GPU node may need: NVLink fabrics, persistence mode, DCGM, containers, multi-node NVLink.
GPU_UNITS = (
    "nvidia-fabricmanager.service",
    "nvidia-persistenced.service",
    "nvidia-imex.service",
    "nvidia-dcgm.service",
    "nvidia-powerd.service",
    "nvidia-mig-manager.service",
    "dcgm-exporter.service",
)


@dataclass(frozen=True, slots=True)
class Unit:
    """`active` and `sub` are systemd's own words, such as active/running or failed/failed."""

    name: str
    load: str
    active: str
    sub: str
    restarts: int | None = None

    @property
    def is_installed(self) -> bool:
        return self.load == "loaded"

    @property
    def is_running(self) -> bool:
        return self.active == "active"


def arguments(names: Sequence[str] = GPU_UNITS) -> list[str]:
    return ["systemctl", "show", "--property=Id,LoadState,ActiveState,SubState,NRestarts", "--", *names]


def read(text: str) -> list[Unit]:
    """The installed units among those asked for."""
    units = []
    for block in text.strip().split("\n\n"):
        named = dict(line.split("=", 1) for line in block.splitlines() if "=" in line)
        restarts = named.get("NRestarts", "")
        unit = Unit(
            named.get("Id", ""),
            named.get("LoadState", ""),
            named.get("ActiveState", ""),
            named.get("SubState", ""),
            int(restarts) if restarts.isdigit() else None,
        )
        if unit.name and unit.is_installed:
            units.append(unit)
    return units
