"""Read the fabric from UFM: three lists of its REST API, and its telemetry page if one is configured.

UFM's REST API guide: a token needs `/ufmRestV3` and the scheme `Basic`, a user name needs `/ufmRest`. `fabric_watch`
calls `read_fabric` instead of `fabric_sweep.sweep` if `[fabric]` names a UFM.
"""

from __future__ import annotations

from collections.abc import Mapping
from time import perf_counter

from watchkeeper.config import settings as config
from watchkeeper.errors import CollectError
from watchkeeper.model import fabric
from watchkeeper.net import http
from watchkeeper.net.access import Access
from watchkeeper.readers.fabric import infiniband_fabric, infiniband_ufm

SOURCE = "ufm"
# A port is about 1.5 KiB of JSON: enough for 80,000 ports.
MAX_BODY_BYTES = 128 << 20
STATUS_MEANING = {401: "the credentials are not accepted", 403: "the credentials do not allow this read"}


async def read_fabric(settings: config.FabricSettings, *, at_ms: int) -> fabric.Fabric:
    """The fabric as UFM reports it; CollectError if UFM does not answer. Without telemetry there are no counters."""
    started = perf_counter()
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
        urls = [f"{root}/resources/{name}" for name in ("systems", "ports", "links")]
        lists = [infiniband_ufm.read_list(await _get(connection, url, access), url) for url in urls]
    finally:
        await connection.aclose()
    system_rows, port_rows, link_rows = lists
    devices = infiniband_ufm.read_devices(port_rows, system_rows)
    ports = infiniband_ufm.read_ports(port_rows, link_rows, (device.guid for device in devices))
    problem = f"UFM lists {len(system_rows)} systems and {len(port_rows)} ports, but none could be read"
    problems = () if ports else (problem,)
    counters, counter_problem = await _read_telemetry(settings)
    if counters is not None:
        ports = infiniband_fabric.add_counters(ports, counters)
    unread = (counter_problem,) if counter_problem else ()
    seconds = round(perf_counter() - started, 3)
    return fabric.Fabric(at_ms, SOURCE, tuple(devices), tuple(ports), problems, unread, seconds)


async def _read_telemetry(
    settings: config.FabricSettings,
) -> tuple[Mapping[fabric.PortKey, Mapping[str, int]] | None, str]:
    if settings.ufm_telemetry_url is None:
        return None, ""
    # Deliberately without the credentials: telemetry is a separate server without authentication.
    access = Access(ca_file=settings.ufm_ca_file or "", insecure_skip_verify=settings.ufm_insecure_skip_verify)
    connection = http.Connection(timeout_seconds=settings.timeout_seconds, max_body_bytes=MAX_BODY_BYTES, access=access)
    try:
        body = await _get(connection, settings.ufm_telemetry_url, access)
    except CollectError as error:
        return None, f"no counters: {error}"
    finally:
        await connection.aclose()
    counters = infiniband_ufm.read_telemetry(body.decode("utf-8", "replace"))
    if not counters:
        return None, f"no counters: {settings.ufm_telemetry_url} returned {len(body)} bytes without a supported counter"
    return counters, ""


async def _get(connection: http.Connection, url: str, access: Access) -> bytes:
    response = await connection.send(http.HttpRequest(url, headers=access.authorization_header()))
    if response.status != 200:
        meaning = STATUS_MEANING.get(response.status, "unexpected status")
        raise CollectError(f"answered {response.status}: {meaning}", where=url)
    return response.body
