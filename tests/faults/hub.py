"""A hub that repairs a simulated fleet once a person has said yes, for the harness to kill and to starve.

`python -m tests.faults.hub` makes one for each line `SIMULATOR DATA PORT SPEED EPOCH`, with tabs between the words.
"""

from __future__ import annotations

from dataclasses import replace

from tests.faults import nursery
from tests.support import deadly_hub
from watchkeeper.cli.hub import up
from watchkeeper.kit import clock
from watchkeeper.model.trust import Mode
from watchkeeper.remediate.drivers.simulated import SimulatedDriver


def main(simulator: str, data: str, port: str, speed: str, epoch: str) -> None:
    configured = up.demo_settings("127.0.0.1", int(port), directory=data, tokens=None)
    chosen = replace(configured.remediate, mode=Mode.ASK, xid_quiet="30s", **deadly_hub.FREE)  # type: ignore[arg-type]
    # A second of life at least: a hub that reads the fleet more often has no time for its faults.
    interval = f"{max(5, round(float(speed)))}s"
    fleet, rules = replace(configured.fleet, scrape_interval=interval), replace(configured.rules, interval=interval)
    time = clock.ScaledClock(speed=float(speed), epoch_seconds=float(epoch))
    settings = replace(configured, remediate=chosen, fleet=fleet, rules=rules)
    deadly_hub.run(settings, SimulatedDriver(simulator), time=time)


if __name__ == "__main__":
    nursery.serve()
