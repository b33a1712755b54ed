"""Asking UFM what the fabric is: three lists of its REST API, and a page of its telemetry where there is one.

With a token UFM wants `/ufmRestV3` and the token behind the word `Basic`; with a user name `/ufmRest`, says its REST
API guide. `fabric_watch` calls `ask` instead of a sweep of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from time import perf_counter
from typing import Any

from watchkeeper.config import settings as config
from watchkeeper.errors import CollectError
from watchkeeper.model import fabric
from watchkeeper.net import http
from watchkeeper.net.access import Access
from watchkeeper.readers.fabric import infiniband_fabric, infiniband_ufm

SOURCE = "ufm"
# A port is about 1.5 KiB of JSON: room for 80,000.
MAX_BODY_BYTES = 128 << 20
SHOWN_STATUS = {401: "it does not accept the credentials", 403: "the credentials may not read this"}


async def read_fabric(settings: config.FabricSettings, *, at_ms: int) -> fabric.Fabric:
    """The fabric as UFM knows it; CollectError where it does not answer. Missing telemetry costs only the counters."""
    began = perf_counter()
    access = Access(
        username=settings.ufm_username or "",
        password_file=settings.ufm_password_file or "",
        scheme="Basic",
        credentials_file=settings.ufm_token_file or "",
        ca_file=settings.ufm_ca_file or "",
        insecure_skip_verify=settings.ufm_insecure_skip_verify,
    )
    connection = http.Connection(timeout_seconds=settings.timeout_seconds, max_body_bytes=MAX_BODY_BYTES, access=access)
    root = (settings.ufm_url or "").rstrip("/") + ("/ufmRestV3" if settings.ufm_token_file else "/ufmRest")
    try:
        systems, ports, links = [
            await _list(connection, f"{root}/resources/{name}", access) for name in ("systems", "ports", "links")
        ]
    finally:
        await connection.aclose()
    devices = infiniband_ufm.read_devices(ports, systems)
    found = infiniband_ufm.read_ports(ports, links, (device.guid for device in devices))
    problems = [] if found else [f"UFM lists {len(systems)} systems and {len(ports)} ports, and none could be read"]
    counters, unread = await _telemetry(settings)
    if counters is not None:
        found = infiniband_fabric.add_counters(found, counters)
    seconds = round(perf_counter() - began, 3)
    return fabric.Fabric(
        at_ms, SOURCE, tuple(devices), tuple(found), tuple(problems), (unread,) if unread else (), seconds
    )


async def _telemetry(
    settings: config.FabricSettings,
) -> tuple[Mapping[fabric.PortKey, Mapping[str, int]] | None, str]:
    if settings.ufm_telemetry_url is None:
        return None, ""
    # Deliberately without the credentials: the telemetry is a server of its own, and has none.
    access = Access(ca_file=settings.ufm_ca_file or "", insecure_skip_verify=settings.ufm_insecure_skip_verify)
    connection = http.Connection(timeout_seconds=settings.timeout_seconds, max_body_bytes=MAX_BODY_BYTES, access=access)
    try:
        body = await _get(connection, settings.ufm_telemetry_url, access)
    except CollectError as error:
        return None, f"no counters: {error}"
    finally:
        await connection.aclose()
    found = infiniband_ufm.read_telemetry(body.decode("utf-8", "replace"))
    if not found:
        return None, f"no counters: {settings.ufm_telemetry_url} answers {len(body)} bytes without one that is known"
    return found, ""


async def _list(connection: http.Connection, url: str, access: Access) -> list[Mapping[str, Any]]:
    return infiniband_ufm.read_list(await _get(connection, url, access), url)


async def _get(connection: http.Connection, url: str, access: Access) -> bytes:
    response = await connection.send(http.HttpRequest(url, headers=access.authorization_header()))
    if response.status != 200:
        said = SHOWN_STATUS.get(response.status, "no answer to the question")
        raise CollectError(f"it answered {response.status}: {said}", where=url)
    return response.body
