"""Reads the chassis sensors of the node's baseboard controller (BMC): over IPMI, and over Redfish if configured.

A BMC answers slowly, so it is read once a minute and never for a scrape; the agent shows the last readings with those
of hwmon, for at most three minutes.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urljoin, urlsplit

from watchkeeper.errors import CollectError, SettingsError
from watchkeeper.kit import commands, logs
from watchkeeper.net import http
from watchkeeper.net.access import Access
from watchkeeper.readers.node import ipmi, redfish
from watchkeeper.readers.node.hwmon import MAX_SENSORS, Sensor

log = logging.getLogger(__name__)

INTERVAL_SECONDS = 60.0
STALE_SECONDS = 3 * INTERVAL_SECONDS
# A BMC on a slow bus needs many seconds for the records of some hundred sensors.
IPMI_TIMEOUT_SECONDS = 30.0
IPMI_DEVICES = ("dev/ipmi0", "dev/ipmi/0", "dev/ipmidev/0")
TIMEOUT_SECONDS = 10.0
# The largest nodes have some dozen fans and power supplies, each a separate resource.
MAX_REQUESTS = 200
MAX_RESOURCE_BYTES = 1 << 20
HEADERS = {"Accept": "application/json", "OData-Version": "4.0"}


@dataclass(frozen=True, slots=True)
class ChassisSettings:
    """`redfish_url` is the BMC's URL, such as https://bmc-7; None: Redfish is not read."""

    redfish_url: str | None = None
    access: Access = field(default_factory=Access)
    reads_ipmi: bool = True


class Chassis:
    def __init__(
        self, settings: ChassisSettings, root: Path, *, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._settings = settings
        self._root = root
        self._monotonic = monotonic
        self._commands = commands.CommandRunner(timeout_seconds=IPMI_TIMEOUT_SECONDS)
        self._readings: dict[str, tuple[float, tuple[Sensor, ...]]] = {}
        self._logged_problems: dict[str, str] = {}

    def sensors(self) -> tuple[Sensor, ...]:
        oldest = self._monotonic() - STALE_SECONDS
        return tuple(sensor for at, sensors in self._readings.values() if at > oldest for sensor in sensors)

    async def read(self) -> None:
        if self._settings.reads_ipmi and any((self._root / name).exists() for name in IPMI_DEVICES):
            await self._record("IPMI", asyncio.to_thread(self._read_ipmi))
        if self._settings.redfish_url is not None:
            await self._record("Redfish", read_redfish(self._settings.redfish_url, self._settings.access))

    async def _record(self, source: str, read: Awaitable[tuple[Sensor, ...]]) -> None:
        try:
            self._readings[source] = (self._monotonic(), await read)
            if self._logged_problems.pop(source, None):
                log.info("chassis sensors readable again", extra=logs.fields(source=source))
        except CollectError as error:
            if self._logged_problems.get(source) != str(error):
                self._logged_problems[source] = str(error)
                log.warning("chassis sensor read failed", extra=logs.fields(source=source, error=str(error)))

    def _read_ipmi(self) -> tuple[Sensor, ...]:
        sensors: list[Sensor] = []
        for arguments in (ipmi.ARGUMENTS, ipmi.SUPPLY_ARGUMENTS):
            answer = self._commands.run(arguments)
            if answer.outcome is not commands.CommandOutcome.ANSWERED:
                problem = next(iter(answer.text.strip().splitlines()), f"ipmitool {answer.outcome}")
                remedy = "Install ipmitool and let the agent's user open the IPMI device, or ignore this"
                raise CollectError(problem, where=" ".join(arguments), remedy=remedy)
            sensors += ipmi.read(answer.text.splitlines())
        # Both outputs contain the power supplies; the first one wins.
        return tuple({(sensor.kind, sensor.label): sensor for sensor in reversed(sensors)}.values())[::-1]


async def read_redfish(url: str, access: Access) -> tuple[Sensor, ...]:
    """Every sensor of every chassis of a BMC; CollectError if it cannot be read."""
    connection = http.Connection(timeout_seconds=TIMEOUT_SECONDS, max_body_bytes=MAX_RESOURCE_BYTES, access=access)
    reader = RedfishReader(url, connection, access)
    try:
        return tuple((await reader.read_sensors())[:MAX_SENSORS])
    finally:
        await connection.aclose()


class RedfishReader:
    """Reads the sensors from the resources of one BMC, with a limit on the number of requests."""

    def __init__(self, url: str, connection: http.Connection, access: Access) -> None:
        self._url = url
        self._connection = connection
        self._headers = {**HEADERS, **access.authorization_header()}
        self._fetched = 0

    async def read_sensors(self) -> list[Sensor]:
        sensors: list[Sensor] = []
        for path in redfish.member_links(await self._fetch("/redfish/v1/Chassis")):
            chassis = await self._fetch(path)
            sensors += [*await self._read_thermal(chassis), *await self._read_power(chassis)]
        return sensors

    async def _read_thermal(self, chassis: redfish.Resource) -> list[Sensor]:
        """Read the newer resources if they exist: a BMC with both repeats the same sensors in the older one."""
        sensors: list[Sensor] = []
        if (path := redfish.resource_link(chassis, "ThermalSubsystem")) is not None:
            subsystem = await self._fetch(path)
            async for fan in self._read_members(subsystem, "Fans"):
                sensors += redfish.read_fan(fan)
            if (metrics := redfish.resource_link(subsystem, "ThermalMetrics")) is not None:
                sensors += redfish.read_thermal_metrics(await self._fetch(metrics))
        elif (path := redfish.resource_link(chassis, "Thermal")) is not None:
            sensors += redfish.read_thermal(await self._fetch(path))
        return sensors

    async def _read_power(self, chassis: redfish.Resource) -> list[Sensor]:
        sensors: list[Sensor] = []
        if (path := redfish.resource_link(chassis, "PowerSubsystem")) is not None:
            async for supply in self._read_members(await self._fetch(path), "PowerSupplies"):
                sensors += redfish.read_supply(supply)
                if (metrics := redfish.resource_link(supply, "Metrics")) is not None:
                    name = redfish.sensor_name(supply) or metrics
                    sensors += redfish.read_supply_metrics(await self._fetch(metrics), name)
        elif (path := redfish.resource_link(chassis, "Power")) is not None:
            sensors += redfish.read_power(await self._fetch(path))
        return sensors

    async def _read_members(self, resource: redfish.Resource, name: str) -> AsyncIterator[redfish.Resource]:
        if (path := redfish.resource_link(resource, name)) is not None:
            for member in redfish.member_links(await self._fetch(path)):
                yield await self._fetch(member)

    async def _fetch(self, path: str) -> redfish.Resource:
        url = urljoin(self._url, path)
        if urlsplit(url)[:2] != urlsplit(self._url)[:2]:
            raise CollectError("the BMC links to another host", where=url)
        self._fetched += 1
        if self._fetched > MAX_REQUESTS:
            raise CollectError(f"more than {MAX_REQUESTS} resources, the limit is {MAX_REQUESTS}", where=self._url)
        response = await self._connection.send(http.HttpRequest(url, headers=self._headers))
        if response.status != 200:
            raise CollectError(f"answered {response.status}", where=url)
        try:
            resource = json.loads(response.body)
        except (ValueError, RecursionError) as error:
            raise CollectError(f"the answer is not JSON: {error}", where=url) from error
        if not isinstance(resource, dict):
            raise CollectError("the answer is not a Redfish resource", where=url)
        return resource


def load_access(credentials: Path | None, ca_file: Path | None = None, *, is_insecure: bool = False) -> Access:
    """Read the credentials from a file with one line `user:password`."""
    ca_path = "" if ca_file is None else str(ca_file)
    if credentials is None:
        return Access(ca_file=ca_path, insecure_skip_verify=is_insecure)
    try:
        lines = [line for line in credentials.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "they are not UTF-8"
        raise SettingsError(f"the credentials cannot be read: {reason}", where=str(credentials)) from error
    user, colon, password = lines[0].partition(":") if len(lines) == 1 else ("", "", "")
    if not user or not colon:
        raise SettingsError("the file must have exactly one line `user:password`", where=str(credentials))
    return Access(username=user, password=password, ca_file=ca_path, insecure_skip_verify=is_insecure)
