"""Read fans, temperatures and power supplies from Redfish resources of a baseboard management controller.

Two generations of the schema are in use: `Thermal` and `Power`, and since 2020 `ThermalSubsystem` and `PowerSubsystem`,
which link to many resources. Each function reads one resource, which `agent.chassis` downloads; a part that is not
installed gives no sensor.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from watchkeeper.readers import json_facts
from watchkeeper.readers.node.hwmon import Sensor

CHIP = "redfish"
Resource = Mapping[str, Any]
# DSP2046, Health: `Warning` needs attention, `Critical` needs it at once.
ALARMED = frozenset({"Critical"})


def member_links(resource: Resource) -> list[str]:
    """The paths of the members of a collection."""
    return [path for member in json_facts.rows(resource, "Members") if (path := resource_link(member)) is not None]


def resource_link(resource: object, name: str | None = None) -> str | None:
    """The path of a resource, or of the resource that it links to under `name`; None if it has none."""
    target = resource.get(name) if name is not None and isinstance(resource, Mapping) else resource
    path = target.get("@odata.id") if isinstance(target, Mapping) else None
    return path if isinstance(path, str) else None


def read_thermal(resource: Resource) -> Iterator[Sensor]:
    """Read the temperatures and fans in `Thermal` of a chassis."""
    for row in json_facts.rows(resource, "Temperatures"):
        yield from _build_sensor(row, "temperature", row.get("ReadingCelsius"))
    for row in json_facts.rows(resource, "Fans"):
        kind = "fan_percent" if row.get("ReadingUnits") == "Percent" else "fan"
        yield from _build_sensor(row, kind, row.get("Reading"))


def read_power(resource: Resource) -> Iterator[Sensor]:
    """Read the power and power supplies in `Power` of a chassis."""
    for row in json_facts.rows(resource, "PowerControl"):
        yield from _build_sensor(row, "power", row.get("PowerConsumedWatts"))
    for row in json_facts.rows(resource, "PowerSupplies"):
        yield from read_supply(row)
        watts = row.get("PowerInputWatts")
        yield from _build_sensor(row, "power", row.get("LastPowerOutputWatts") if watts is None else watts)


def read_fan(resource: Resource) -> Iterator[Sensor]:
    """Read one fan of a `ThermalSubsystem`."""
    speed = resource.get("SpeedPercent")
    if isinstance(speed, Mapping):
        yield from _build_sensor(resource, "fan", speed.get("SpeedRPM"))
        yield from _build_sensor(resource, "fan_percent", speed.get("Reading"))


def read_thermal_metrics(resource: Resource) -> Iterator[Sensor]:
    """Read the temperatures in `ThermalMetrics` of a `ThermalSubsystem`."""
    for row in json_facts.rows(resource, "TemperatureReadingsCelsius"):
        yield from _build_sensor({**row, "Name": row.get("DeviceName")}, "temperature", row.get("Reading"))
    summary = resource.get("TemperatureSummaryCelsius")
    for name, row in summary.items() if isinstance(summary, Mapping) else ():
        if isinstance(row, Mapping):
            yield from _build_sensor({"Name": name}, "temperature", row.get("Reading"))


def read_supply(resource: Resource) -> Iterator[Sensor]:
    """Read whether a power supply works; one that is not installed has no state."""
    health = json_facts.mapping(resource, "Status").get("Health")
    if isinstance(health, str):
        yield from _build_sensor(resource, "supply", 1 if health == "OK" else 0)


def read_supply_metrics(resource: Resource, name: str) -> Iterator[Sensor]:
    watts = resource.get("InputPowerWatts") or resource.get("OutputPowerWatts")
    if isinstance(watts, Mapping):
        yield from _build_sensor({"Name": name}, "power", watts.get("Reading"))


def sensor_name(resource: Resource) -> str | None:
    """The name of a sensor; BMCs set one of three keys, and `MemberId`, a number, is the last resort."""
    return next((str(resource[key]) for key in ("Name", "FanName", "MemberId") if resource.get(key)), None)


def _build_sensor(resource: Resource, kind: str, reading: object) -> Iterator[Sensor]:
    status, name = json_facts.mapping(resource, "Status"), sensor_name(resource)
    if name is None or not isinstance(reading, int | float) or isinstance(reading, bool):
        return
    health = status.get("Health")
    is_alarmed = health in ALARMED if isinstance(health, str) else None
    if status.get("State") not in ("Absent", "Disabled", "UnavailableOffline"):
        yield Sensor(CHIP, kind, name, float(reading), is_alarmed=is_alarmed)
