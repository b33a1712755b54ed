"""The child that reads every GPU through NVML once a second while tests run, a JSON line for each round.

`diag_look` starts it; `diag_watched` judges what it says. It reads the families that the agent's page has too, so a
number here means what it means there, and NVML's events: an Xid is said at once. It never writes to the driver.
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

# Two calls of 21 ms on an H200 for numbers that nobody asks for here.
LEFT_OUT = frozenset({"pcie_throughput", "gpm", "energy"})
# Not on the agent's page unless a counters file asks for them.
ADDED = ("DCGM_FI_DEV_PERSISTENCE_MODE", "DCGM_FI_DEV_MIG_MODE", "DCGM_FI_DEV_COMPUTE_MODE")
ECC = ("DCGM_FI_DEV_ECC_CURRENT", "DCGM_FI_DEV_ECC_PENDING")
PERIOD_SECONDS = 1.0


def families() -> tuple[NvmlFamily, ...]:
    usual = [family for family in choice.choose_families().families if family.call not in LEFT_OUT]
    known = {family.name for family in usual}
    return (*usual, *(choice.dcgm_families()[name][0] for name in (*ADDED, *ECC) if name not in known))


def main() -> None:
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    period = float(sys.argv[1]) if len(sys.argv) > 1 else PERIOD_SECONDS
    try:
        nvml = session.load()
        opened = session.Session(nvml, families(), lambda _: None)
    except session.NvmlBroken as error:
        _say(say="broken", reason=error.reason, why=str(error))
        return
    _say(say="hello", driver=opened.driver, library=opened.library, count=opened.count)
    is_first = True
    while True:
        start = time.monotonic()
        _say(say="reading", gpus=[_read(opened, index) for index in range(opened.count)])
        if is_first:
            is_first = False
            threading.Thread(target=_hear, args=(nvml, opened), daemon=True).start()
        time.sleep(max(0.0, period - (time.monotonic() - start)))


def _read(opened: session.Session, index: int) -> dict[str, Any]:
    found = opened.read(index, (Cadence.FAST, Cadence.SLOW, Cadence.RARE)).plain()
    device = opened.gpus().get(index)
    identity = found.get("identity") or (device.identity if device is not None else None)
    return {
        "index": index,
        "identity": identity,
        "values": found.get("values", {}),
        "programs": found.get("programs"),
        "lost": found.get("lost"),
        "refused": found.get("refused"),
    }


def _hear(nvml: Any, opened: session.Session) -> None:
    heard = events.EventSet(nvml)
    for device in opened.gpus().values():
        heard.register(device.handle, device.identity["uuid"])
    while True:
        try:
            event = heard.wait(1000)
        except nvml.NVMLError as error:
            _say(say="deaf", why=opened.error_name(error))
            return
        if event is not None:
            _say(say="event", kind=event.kind, gpu=event.uuid, detail=event.detail)


_writing = threading.Lock()


def _say(**words: Any) -> None:
    with _writing:
        sys.stdout.write(json.dumps(words) + "\n")
        sys.stdout.flush()


def _leave_with_parent() -> None:
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    main()
