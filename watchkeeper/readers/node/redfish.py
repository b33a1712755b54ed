"""Fans, temperatures and power supplies as a baseboard controller gives them over Redfish.

Two generations of the schema are in use: `Thermal` and `Power`, one resource each, and since 2020 `ThermalSubsystem`
and `PowerSubsystem`, which lead to many. Each function reads one resource; `agent.chassis` fetches them. A
reading that is absent, or of a part that is not there, gives no sensor.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from watchkeeper.readers.node.hwmon import Sensor

CHIP = "redfish"
Resource = Mapping[str, Any]
# DSP2046, Health: `Warning` needs attention, `Critical` needs it at once.
ALARMED = frozenset({"Critical"})


def links(resource: Resource) -> list[str]:
    """The members of a collection."""
    return [path for member in _rows(resource, "Members") if (path := link(member)) is not None]


def link(resource: object, name: str | None = None) -> str | None:
    """Where a resource, or the one that it names, is to be found."""
    inner = resource.get(name) if name is not None and isinstance(resource, Mapping) else resource
    path = inner.get("@odata.id") if isinstance(inner, Mapping) else None
    return path if isinstance(path, str) else None


def thermal(resource: Resource) -> Iterator[Sensor]:
    """`Thermal` of a chassis."""
    for row in _rows(resource, "Temperatures"):
        yield from _sensor(row, "temperature", row.get("ReadingCelsius"))
    for row in _rows(resource, "Fans"):
        kind = "fan_percent" if row.get("ReadingUnits") == "Percent" else "fan"
        yield from _sensor(row, kind, row.get("Reading"))


def power(resource: Resource) -> Iterator[Sensor]:
    """`Power` of a chassis."""
    for row in _rows(resource, "PowerControl"):
        yield from _sensor(row, "power", row.get("PowerConsumedWatts"))
    for row in _rows(resource, "PowerSupplies"):
        yield from supply(row)
        watts = row.get("PowerInputWatts")
        yield from _sensor(row, "power", row.get("LastPowerOutputWatts") if watts is None else watts)


def fan(resource: Resource) -> Iterator[Sensor]:
    """One fan of a `ThermalSubsystem`."""
    speed = resource.get("SpeedPercent")
    if isinstance(speed, Mapping):
        yield from _sensor(resource, "fan", speed.get("SpeedRPM"))
        yield from _sensor(resource, "fan_percent", speed.get("Reading"))


def thermal_metrics(resource: Resource) -> Iterator[Sensor]:
    """`ThermalMetrics` of a `ThermalSubsystem`."""
    for row in _rows(resource, "TemperatureReadingsCelsius"):
        yield from _sensor({**row, "Name": row.get("DeviceName")}, "temperature", row.get("Reading"))
    summary = resource.get("TemperatureSummaryCelsius")
    for name, row in summary.items() if isinstance(summary, Mapping) else ():
        if isinstance(row, Mapping):
            yield from _sensor({"Name": name}, "temperature", row.get("Reading"))


def supply(resource: Resource) -> Iterator[Sensor]:
    """Whether a power supply works; one that is not there has no state."""
    health = _status(resource).get("Health")
    if isinstance(health, str):
        yield from _sensor(resource, "supply", 1 if health == "OK" else 0)


def supply_metrics(resource: Resource, name: str) -> Iterator[Sensor]:
    watts = resource.get("InputPowerWatts") or resource.get("OutputPowerWatts")
    if isinstance(watts, Mapping):
        yield from _sensor({"Name": name}, "power", watts.get("Reading"))


def name_of(resource: Resource) -> str | None:
    """BMCs fill one of three; `MemberId` alone is a number that says little and is still better than nothing."""
    return next((str(resource[key]) for key in ("Name", "FanName", "MemberId") if resource.get(key)), None)


def _sensor(resource: Resource, kind: str, reading: object) -> Iterator[Sensor]:
    status, name, value = _status(resource), name_of(resource), _number(reading)
    if value is None or name is None or status.get("State") in ("Absent", "Disabled", "UnavailableOffline"):
        return
    health = status.get("Health")
    alarmed = health in ALARMED if isinstance(health, str) else None
    yield Sensor(CHIP, kind, name, value, is_alarmed=alarmed)


def _status(resource: Resource) -> Mapping[str, Any]:
    status = resource.get("Status")
    return status if isinstance(status, Mapping) else {}


def _rows(resource: Resource, name: str) -> list[Resource]:
    rows = resource.get(name) if isinstance(resource, Mapping) else None
    return [row for row in rows if isinstance(row, Mapping)] if isinstance(rows, list) else []


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
