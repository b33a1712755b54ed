"""A hub that repairs a simulated fleet once a person has said yes, for the harness to kill and to starve.

`python -m tests.faults.hub SIMULATOR DATA PORT SPEED EPOCH`.
"""

from __future__ import annotations

import sys
from dataclasses import replace

from tests.remediate import deadly_hub
from watchkeeper.cli import up
from watchkeeper.kit import clock
from watchkeeper.model.actions import Mode
from watchkeeper.remediate.drivers.simulated import Simulated


def main(simulator: str, data: str, port: str, speed: str, epoch: str) -> None:
    configured = up.demo_settings("127.0.0.1", int(port), directory=data, tokens=None)
    chosen = replace(configured.remediate, mode=Mode.ASK, xid_quiet="30s", **deadly_hub.FREE)  # type: ignore[arg-type]
    time = clock.ScaledClock(speed=float(speed), epoch_seconds=float(epoch))
    deadly_hub.run(replace(configured, remediate=chosen), Simulated(simulator), time=time)


if __name__ == "__main__":
    main(*sys.argv[1:])
