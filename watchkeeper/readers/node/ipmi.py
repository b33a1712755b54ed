"""Read fans, temperatures and power supplies from the output of `ipmitool`, in any of its four formats.

    FAN1             | 5400 RPM          | ok                          (sdr)
    FAN1             | 41h | ok  | 29.1 | 5400 RPM                     (sdr elist)
    FAN1             | 5400.000   | RPM        | ok    | 300.000 | …   (sensor)
    FAN1,5400,RPM,ok                                                  (-c sdr)

`agent.chassis` runs the program and exports the sensors beside those of hwmon. A sensor without a reading is absent.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from watchkeeper.readers.node.hwmon import MAX_SENSORS, Sensor

CHIP = "ipmi"
# `full` omits records that are not sensors. It takes seconds; `sensor` takes ten times as long.
ARGUMENTS = ("ipmitool", "sdr", "elist", "full")
# Full records have numbers; the state of a power supply is in a compact record.
SUPPLY_ARGUMENTS = ("ipmitool", "sdr", "type", "Power Supply")
KINDS = {"rpm": "fan", "degrees c": "temperature", "watts": "power"}
# Critical and non-recoverable; `sensor` adds l and u for too low and too high. `nc`, non-critical, is a warning.
ALARMED = frozenset({"cr", "nr", "lcr", "ucr", "lnr", "unr"})
STATES = frozenset({"ok", "ns", "nc", "cr", "nr", "lnc", "unc", "lcr", "ucr", "lnr", "unr", "na"})
READING = re.compile(r"(-?\d+(?:\.\d+)?)(?:\s+(?:\([^)]*\)\s+)?(.+))?")
# PSU1 Status | C8h | ok | 10.1 | Presence detected, Power Supply AC lost
SUPPLY_FAULTS = re.compile(r"failure|ac lost|out-of-range|config error|predictive", re.IGNORECASE)
# 0x1 means only `present`; other bits are faults (IPMI 2.0, table 42-3, sensor type 08h).
PRESENT = 0x1


def read(lines: Iterable[str]) -> list[Sensor]:
    sensors: list[Sensor] = []
    for line in lines:
        separator = "|" if "|" in line else ","
        cells = [cell.strip() for cell in line.split(separator)]
        sensor = _read_sensor(cells) if len(cells) >= 3 else None
        if sensor is not None and len(sensors) < MAX_SENSORS:
            sensors.append(sensor)
    return sensors


def _read_sensor(cells: Sequence[str]) -> Sensor | None:
    name, *others = cells
    state_index = next((index for index, cell in enumerate(others) if cell.lower() in STATES), None)
    if not name or state_index is None:
        return None
    state = others[state_index].lower()
    if len(others) == 4 and state_index == 1:
        # sdr elist: id, state, entity, reading.
        value, unit = _split_reading(others[3])
    elif state_index == 1:
        value, unit = _split_reading(others[0])
    else:
        value, unit = _split_reading(f"{others[0]} {others[1]}")
    if value is None:
        return _read_supply(name, state, others[-1] if len(others) == 4 else others[0])
    kind = KINDS.get(unit) or ("fan_percent" if unit == "percent" and "fan" in name.lower() else None)
    if kind is None or state in ("ns", "na"):
        return None
    return Sensor(CHIP, kind, name, value, is_alarmed=state in ALARMED)


def _read_supply(name: str, state: str, text: str) -> Sensor | None:
    """Read the state of a power supply, which has words or bits instead of a number."""
    if state in ("ns", "na") or not re.search(r"\bPS(?:U|\d)|power supply", f"{name} ", re.IGNORECASE):
        return None
    if text.startswith("0x"):
        bits = int(text, 16) & 0xFF if re.fullmatch(r"0x[0-9a-fA-F]{1,4}", text) else 0
        has_failed = bool(bits & ~PRESENT)
    elif "presence detected" in text.lower():
        has_failed = SUPPLY_FAULTS.search(text) is not None
    else:
        return None
    return Sensor(CHIP, "supply", name, 0.0 if has_failed else 1.0, is_alarmed=has_failed)


def _split_reading(text: str) -> tuple[float | None, str]:
    match = READING.fullmatch(text)
    return (None, "") if match is None else (float(match[1]), (match[2] or "").lower())
