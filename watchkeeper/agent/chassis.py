"""The machine's own sensors behind its baseboard controller: over IPMI from inside, over Redfish where configured.

A controller answers slowly, so it is asked once a minute and never for a scrape; the agent shows the last readings
beside those of hwmon, and none that are older than three rounds. What cannot be asked is said once.
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
KEPT_SECONDS = 3 * INTERVAL_SECONDS
# A controller on a slow bus needs seconds for each of some hundred sensors' records.
IPMI_SECONDS = 30.0
IPMI_DEVICES = ("dev/ipmi0", "dev/ipmi/0", "dev/ipmidev/0")
REQUEST_SECONDS = 10.0
# The largest machines have some dozen fans and supplies, each a resource of its own.
MAX_REQUESTS = 200
MAX_RESOURCE_BYTES = 1 << 20
HEADERS = {"Accept": "application/json", "OData-Version": "4.0"}


@dataclass(frozen=True, slots=True)
class ChassisSettings:
    """`redfish_url` is the controller's address, such as https://bmc-7; None: not asked."""

    redfish_url: str | None = None
    access: Access = field(default_factory=Access)
    reads_ipmi: bool = True


class Chassis:
    """Keeps the last readings of one machine."""

    def __init__(
        self, settings: ChassisSettings, root: Path, *, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._settings = settings
        self._root = root
        self._monotonic = monotonic
        self._commands = commands.CommandRunner(timeout_seconds=IPMI_SECONDS)
        self._kept: dict[str, tuple[float, tuple[Sensor, ...]]] = {}
        self._said: dict[str, str] = {}

    def sensors(self) -> tuple[Sensor, ...]:
        """What was last read, as long as it is not too old."""
        now = self._monotonic()
        return tuple(one for at, found in self._kept.values() if now - at < KEPT_SECONDS for one in found)

    async def read(self) -> None:
        """Ask every source that is there."""
        if self._settings.reads_ipmi and any((self._root / name).exists() for name in IPMI_DEVICES):
            await self._keep("IPMI", asyncio.to_thread(self._ask_ipmi))
        if self._settings.redfish_url is not None:
            await self._keep("Redfish", read_redfish(self._settings.redfish_url, self._settings.access))

    async def _keep(self, source: str, reading: Awaitable[tuple[Sensor, ...]]) -> None:
        try:
            self._kept[source] = (self._monotonic(), await reading)
            if self._said.pop(source, None):
                log.info("Chassis sensors are read again", extra=logs.fields(source=source))
        except CollectError as error:
            if self._said.get(source) != str(error):
                self._said[source] = str(error)
                log.warning("Chassis sensors are not read", extra=logs.fields(source=source, error=str(error)))

    def _ask_ipmi(self) -> tuple[Sensor, ...]:
        found: list[Sensor] = []
        for arguments in (ipmi.ARGUMENTS, ipmi.SUPPLY_ARGUMENTS):
            answer = self._commands.run(arguments)
            if answer.outcome is not commands.CommandOutcome.ANSWERED:
                said = answer.text.strip().splitlines()[:1]
                raise CollectError(
                    said[0] if said else f"ipmitool {answer.outcome}",
                    where=" ".join(arguments),
                    remedy="Install ipmitool and let the agent's user open the IPMI device, or ignore this",
                )
            found += ipmi.read(answer.text.splitlines())
        # Both printouts name the supplies' numbers; the first wins.
        return tuple({(one.kind, one.label): one for one in reversed(found)}.values())[::-1]


async def read_redfish(url: str, access: Access) -> tuple[Sensor, ...]:
    """Every sensor of every chassis of a controller; CollectError if it does not answer as one."""
    connection = http.Connection(timeout_seconds=REQUEST_SECONDS, max_body_bytes=MAX_RESOURCE_BYTES, access=access)
    walk = RedfishWalk(url, connection, access)
    try:
        return tuple([sensor async for sensor in walk.sensors()][:MAX_SENSORS])
    finally:
        await connection.aclose()


class RedfishWalk:
    """One walk over a controller's resources, with a limit on how many are fetched."""

    def __init__(self, url: str, connection: http.Connection, access: Access) -> None:
        self._url = url
        self._connection = connection
        self._headers = {**HEADERS, **access.authorization_header()}
        self._fetched = 0

    async def sensors(self) -> AsyncIterator[Sensor]:
        for path in redfish.links(await self._get("/redfish/v1/Chassis")):
            chassis = await self._get(path)
            async for sensor in self._thermal(chassis):
                yield sensor
            async for sensor in self._power(chassis):
                yield sensor

    async def _thermal(self, chassis: redfish.Resource) -> AsyncIterator[Sensor]:
        """The newer resources where there are any: a controller that has both repeats itself in the older one."""
        if (path := redfish.link(chassis, "ThermalSubsystem")) is not None:
            subsystem = await self._get(path)
            async for fan in self._members(subsystem, "Fans"):
                for sensor in redfish.fan(fan):
                    yield sensor
            if (metrics := redfish.link(subsystem, "ThermalMetrics")) is not None:
                for sensor in redfish.thermal_metrics(await self._get(metrics)):
                    yield sensor
        elif (path := redfish.link(chassis, "Thermal")) is not None:
            for sensor in redfish.thermal(await self._get(path)):
                yield sensor

    async def _power(self, chassis: redfish.Resource) -> AsyncIterator[Sensor]:
        if (path := redfish.link(chassis, "PowerSubsystem")) is not None:
            async for supply in self._members(await self._get(path), "PowerSupplies"):
                for sensor in redfish.supply(supply):
                    yield sensor
                metrics = redfish.link(supply, "Metrics")
                if metrics is not None:
                    for sensor in redfish.supply_metrics(await self._get(metrics), redfish.name_of(supply) or metrics):
                        yield sensor
        elif (path := redfish.link(chassis, "Power")) is not None:
            for sensor in redfish.power(await self._get(path)):
                yield sensor

    async def _members(self, resource: redfish.Resource, name: str) -> AsyncIterator[redfish.Resource]:
        if (path := redfish.link(resource, name)) is not None:
            for member in redfish.links(await self._get(path)):
                yield await self._get(member)

    async def _get(self, path: str) -> redfish.Resource:
        url = urljoin(self._url, path)
        if urlsplit(url)[:2] != urlsplit(self._url)[:2]:
            raise CollectError("the controller points to another machine", where=url)
        self._fetched += 1
        if self._fetched > MAX_REQUESTS:
            raise CollectError(f"more than {MAX_REQUESTS} resources, the limit is {MAX_REQUESTS}", where=self._url)
        response = await self._connection.send(http.HttpRequest(url, headers=self._headers))
        if response.status != 200:
            raise CollectError(f"answered {response.status}", where=url)
        try:
            resource = json.loads(response.body)
        except (ValueError, RecursionError) as error:
            raise CollectError(f"the answer is no JSON: {error}", where=url) from error
        if not isinstance(resource, dict):
            raise CollectError("the answer is no Redfish resource", where=url)
        return resource


def load_access(credentials: Path | None, ca_file: Path | None = None, *, is_insecure: bool = False) -> Access:
    """How to be let in: a file with one line `user:password`."""
    ca = "" if ca_file is None else str(ca_file)
    if credentials is None:
        return Access(ca_file=ca, insecure_skip_verify=is_insecure)
    try:
        lines = [line for line in credentials.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "they are not UTF-8"
        raise SettingsError(f"the credentials cannot be read: {why}", where=str(credentials)) from error
    user, colon, password = lines[0].partition(":") if len(lines) == 1 else ("", "", "")
    if not user or not colon:
        raise SettingsError("one line `user:password` is needed", where=str(credentials))
    return Access(username=user, password=password, ca_file=ca, insecure_skip_verify=is_insecure)
