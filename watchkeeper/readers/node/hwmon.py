"""Fans, temperatures and power supplies as Linux hwmon shows them under /sys/class/hwmon.

A sensor is a set of files: fan3_input, fan3_label, fan3_fault, fan3_alarm. What a chip does not have is absent.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from watchkeeper.readers.node.host import read_text

# Kernel documentation, hwmon/sysfs-interface: temperatures in m°C, power in µW, voltages in mV.
KINDS = {"fan": ("fan", 1.0), "temp": ("temperature", 0.001), "power": ("power", 1e-6)}
SENSOR = re.compile(r"^(fan|temp|power)(\d+)_(?:input|average)$")
# A large server has some hundred; this is far above it.
MAX_SENSORS = 1_000


@dataclass(frozen=True, slots=True)
class Sensor:
    """One reading: RPM of a fan, °C of a temperature, W of a power; 1 or 0 of a supply that works or not.

    `is_alarmed` None: the chip does not say.
    """

    chip: str
    kind: str
    label: str
    value: float
    is_alarmed: bool | None = None


def read(sysfs: Path) -> list[Sensor]:
    """Every sensor of every chip, in the order of their names."""
    found: list[Sensor] = []
    for chip in sorted((sysfs / "class/hwmon").glob("hwmon*")):
        name = read_text(chip / "name") or chip.name
        for path in sorted(chip.glob("*_*")):
            match = SENSOR.match(path.name)
            sensor = None if match is None else _read_one(chip, name, match)
            if sensor is not None and len(found) < MAX_SENSORS:
                found.append(sensor)
    return found


def _read_one(chip: Path, name: str, match: re.Match[str]) -> Sensor | None:
    prefix = f"{match[1]}{match[2]}"
    kind, scale = KINDS[match[1]]
    value = _number(chip / match[0])
    if value is None:
        return None
    flags = [_number(chip / f"{prefix}_{flag}") for flag in ("fault", "alarm", "crit_alarm")]
    said = [flag for flag in flags if flag is not None]
    return Sensor(
        name,
        kind,
        read_text(chip / f"{prefix}_label") or prefix,
        value * scale,
        is_alarmed=any(said) if said else None,
    )


def _number(path: Path) -> float | None:
    try:
        return float(read_text(path) or "")
    except ValueError:
        return None
