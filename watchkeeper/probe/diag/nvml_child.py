"""Child process that reads every GPU through NVML once a second during tests and writes a JSON line each time.

It reads the same families as the agent, so that values mean the same, and NVML events: an Xid is sent at once. It never
changes settings of the driver.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from typing import Any

from watchkeeper.readers.nvml import choice, events, session
from watchkeeper.readers.nvml.families import Cadence, NvmlFamily

# Not needed here; two of these calls take 21 ms on an H200.
SKIPPED_CALLS = frozenset({"pcie_throughput", "gpm", "energy"})
# The agent exports these only if a counters file lists them.
EXTRA_FAMILIES = (
    "DCGM_FI_DEV_PERSISTENCE_MODE",
    "DCGM_FI_DEV_MIG_MODE",
    "DCGM_FI_DEV_COMPUTE_MODE",
    "DCGM_FI_DEV_ECC_CURRENT",
    "DCGM_FI_DEV_ECC_PENDING",
)
PERIOD_SECONDS = 1.0


def choose_families() -> tuple[NvmlFamily, ...]:
    defaults = [family for family in choice.choose_families().families if family.call not in SKIPPED_CALLS]
    names = {family.name for family in defaults}
    return (*defaults, *(choice.load_dcgm_families()[name][0] for name in EXTRA_FAMILIES if name not in names))


def main() -> None:
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    period = float(sys.argv[1]) if len(sys.argv) > 1 else PERIOD_SECONDS
    try:
        nvml = session.load()
        nvml_session = session.Session(nvml, choose_families(), lambda _: None)
    except session.NvmlBroken as error:
        _send(type="start_failed", reason=error.reason, why=str(error))
        return
    _send(type="ready", driver=nvml_session.driver, library=nvml_session.library, count=nvml_session.count)
    is_first = True
    while True:
        start = time.monotonic()
        _send(type="reading", gpus=[_read_gpu(nvml_session, index) for index in range(nvml_session.count)])
        if is_first:
            is_first = False
            threading.Thread(target=_send_events, args=(nvml, nvml_session), daemon=True).start()
        time.sleep(max(0.0, period - (time.monotonic() - start)))


def _read_gpu(nvml_session: session.Session, index: int) -> dict[str, Any]:
    reading = nvml_session.read(index, (Cadence.FAST, Cadence.SLOW, Cadence.RARE)).plain()
    device = nvml_session.gpus().get(index)
    identity = reading.get("identity") or (device.identity if device is not None else None)
    others = {name: reading.get(name) for name in ("programs", "lost", "refused")}
    return {"index": index, "identity": identity, "values": reading.get("values", {}), **others}


def _send_events(nvml: Any, nvml_session: session.Session) -> None:
    event_set = events.EventSet(nvml)
    for device in nvml_session.gpus().values():
        event_set.register(device.handle, device.identity["uuid"])
    while True:
        try:
            event = event_set.wait(1000)
        except nvml.NVMLError as error:
            _send(type="events_failed", why=nvml_session.error_name(error))
            return
        if event is not None:
            _send(type="event", kind=event.kind, gpu=event.uuid, detail=event.detail)


_output_lock = threading.Lock()


def _send(**message: Any) -> None:
    with _output_lock:
        sys.stdout.write(json.dumps(message) + "\n")
        sys.stdout.flush()


def _exit_with_parent() -> None:
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    main()
