"""Read the state of systemd units from `systemctl show`.

The output has a block for each unit with one `Key=value` per line, and an empty line between blocks. A unit that is not
installed is listed with LoadState=not-found.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

# Units that a GPU node may need: NVLink fabrics, persistence mode, DCGM, containers, multi-node NVLink.
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
    """A systemd unit; `active` and `sub` are its states, such as active/running or failed/failed."""

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


def show_command(names: Sequence[str] = GPU_UNITS) -> list[str]:
    return ["systemctl", "show", "--property=Id,LoadState,ActiveState,SubState,NRestarts", "--", *names]


def read(text: str) -> list[Unit]:
    """Read the installed units from the output of `show_command`."""
    units = []
    for block in text.strip().split("\n\n"):
        fields = dict(line.split("=", 1) for line in block.splitlines() if "=" in line)
        restarts = fields.get("NRestarts", "")
        unit = Unit(
            fields.get("Id", ""),
            fields.get("LoadState", ""),
            fields.get("ActiveState", ""),
            fields.get("SubState", ""),
            int(restarts) if restarts.isdigit() else None,
        )
        if unit.name and unit.is_installed:
            units.append(unit)
    return units
