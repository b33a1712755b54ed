"""Read fan, temperature and power sensors from Linux hwmon, /sys/class/hwmon.

A sensor is a set of files: fan3_input, fan3_label, fan3_fault, fan3_alarm. Files that a chip does not have are absent.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from watchkeeper.readers.node.host import read_text

# Kernel documentation, hwmon/sysfs-interface: temperatures in m°C, power in µW, voltages in mV.
KINDS = {"fan": ("fan", 1.0), "temp": ("temperature", 0.001), "power": ("power", 1e-6)}
SENSOR = re.compile(r"^(fan|temp|power)(\d+)_(?:input|average)$")
# A large server has about a hundred.
MAX_SENSORS = 1_000


@dataclass(frozen=True, slots=True)
class Sensor:
    """One sensor with its reading: RPM of a fan, °C, W, or 1 and 0 for a power supply that works or failed."""

    chip: str
    kind: str
    label: str
    value: float
    # None if the chip does not report it.
    is_alarmed: bool | None = None


def read(sysfs: Path) -> list[Sensor]:
    sensors: list[Sensor] = []
    for chip in sorted((sysfs / "class/hwmon").glob("hwmon*")):
        name = read_text(chip / "name") or chip.name
        for path in sorted(chip.glob("*_*")):
            match = SENSOR.match(path.name)
            sensor = None if match is None else _read_sensor(chip, name, match)
            if sensor is not None and len(sensors) < MAX_SENSORS:
                sensors.append(sensor)
    return sensors


def _read_sensor(chip: Path, name: str, match: re.Match[str]) -> Sensor | None:
    prefix = f"{match[1]}{match[2]}"
    kind, scale = KINDS[match[1]]
    value = _number(chip / match[0])
    if value is None:
        return None
    flags = [_number(chip / f"{prefix}_{flag}") for flag in ("fault", "alarm", "crit_alarm")]
    known_flags = [flag for flag in flags if flag is not None]
    return Sensor(
        name,
        kind,
        read_text(chip / f"{prefix}_label") or prefix,
        value * scale,
        is_alarmed=any(known_flags) if known_flags else None,
    )


def _number(path: Path) -> float | None:
    try:
        return float(read_text(path) or "")
    except ValueError:
        return None
