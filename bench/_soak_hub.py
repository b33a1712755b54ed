"""A hub over a simulated fleet that runs faster than time: `python -m bench._soak_hub SIMULATOR DATA PORT SPEED EPOCH`.

Its memory and retention are shorter than usual, so that in a simulated day everything comes to its end several times:
rows of samples, blocks, merges, alerts, incidents.
"""

from __future__ import annotations

import dataclasses
import sys

from tests.remediate import deadly_hub
from watchkeeper.cli import up
from watchkeeper.kit import clock, memory
from watchkeeper.remediate.drivers.simulated import Simulated


def main(simulator: str, data: str, port: str, speed: str, epoch: str) -> None:
    memory.give_back_early()
    told = up.demo_settings("127.0.0.1", int(port), directory=data, tokens=None)
    query = dataclasses.replace(told.query, memory="1h", block="15m", out_of_order="5m", retention="6h")
    fleet = dataclasses.replace(told.fleet, scrape_interval="60s", scrape_timeout="50s")
    rules = dataclasses.replace(told.rules, interval="60s")
    time = clock.ScaledClock(speed=float(speed), epoch_seconds=float(epoch))
    deadly_hub.run(dataclasses.replace(told, query=query, fleet=fleet, rules=rules), Simulated(simulator), time=time)


if __name__ == "__main__":
    main(*sys.argv[1:])
