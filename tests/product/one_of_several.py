"""One of several hubs on one PostgreSQL, over a simulated fleet, with an agent that tells this hub alone.

`python -m tests.product.one_of_several SIMULATOR DATA PORT SPEED EPOCH URL_FILE LEASE DEATH`, where DEATH is `never`,
such as `before:drain` for kill -9, or such as `stop:reboot` to be stopped in the middle of that call. What the
simulator answers to each call is written into the file `calls` beside DATA.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

from tests.support import deadly_hub
from watchkeeper.cli.hub import up
from watchkeeper.config import settings
from watchkeeper.kit import clock, logs
from watchkeeper.model.actions import Action
from watchkeeper.model.trust import Mode
from watchkeeper.remediate.driver import ActionOutcome


class Stopping(deadly_hub.Deadly):
    has_stopped = False
    calls = Path("calls")

    def perform(self, action: Action) -> ActionOutcome:
        if (self.when, action.kind) == ("stop", self.kind) and not Stopping.has_stopped:
            Stopping.has_stopped = True
            os.kill(os.getpid(), signal.SIGSTOP)
            # The signal may stop the other threads first, and this one only after it has made its call.
            time.sleep(1)
        done = super().perform(action)
        with Stopping.calls.open("a") as file:
            file.write(f"{os.getpid()} {done.text}\n")
        return done


def main(simulator: str, data: str, port: str, speed: str, epoch: str, url_file: str, lease: str, death: str) -> None:
    logs.configure(as_json=False)
    Stopping.calls = Path(data).parent / "calls"
    deadly_hub.Deadly.when, _, deadly_hub.Deadly.kind = death.partition(":")

    configured = up.demo_settings("127.0.0.1", int(port), directory=data, tokens=None)
    configured = replace(
        configured,
        remediate=replace(configured.remediate, mode=Mode.ACT, xid_quiet="30s"),
        journal=settings.JournalSettings(url_file=url_file, lease=lease),
    )
    scaled = clock.ScaledClock(speed=float(speed), epoch_seconds=float(epoch))
    deadly_hub.run(configured, Stopping(simulator), time=scaled)


if __name__ == "__main__":
    main(*sys.argv[1:])
