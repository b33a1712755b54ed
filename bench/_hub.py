"""A hub whose memory is filled with telemetry, served as users reach it: `python -m bench._hub FOLDER PORT GPUS SLOTS`.

With `kept` behind that it reads what lies in its folder instead.
Its clock stands still at the end of the telemetry, it has no targets and one rule that never fires, so that nothing
but the questions of a bench takes time. Samples come in as after a restart.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import numpy as np

from bench import telemetry
from watchkeeper import hub
from watchkeeper.config import settings
from watchkeeper.kit import clock, memory
from watchkeeper.query.embedded import EmbeddedEngine
from watchkeeper.store import durable
from watchkeeper.web import app, auth, server

SILENT_RULES = "groups: [{name: silent, rules: [{alert: Never, expr: vector(0) > 1}]}]\n"


def fill(store: durable.DurableStore, fleet: telemetry.Telemetry) -> None:
    readings = dict(fleet.metrics())
    for node in range(fleet.nodes):
        gpus = fleet.gpus_of(node)
        ids = np.array([store.series_id(fleet.labels(metric, gpu)) for metric in readings for gpu in gpus])
        rows = np.concatenate([values[gpus.start : gpus.stop] for values in readings.values()])
        store.head.load_scrapes(f"node-{node}", ids, fleet.times_ms(node), values=rows)


async def serve(folder: Path, port: int, fleet: telemetry.Telemetry, *, is_kept: bool) -> None:
    (folder / "rules.yml").write_text(SILENT_RULES)
    configured = settings.Settings(
        hub=settings.Hub(data=str(folder / "hub"), port=port),
        # Everything stays in memory, as in a Prometheus that has not cut its first block.
        query=settings.Query(memory="3h", block="12h"),
        rules=settings.Rules(files=(str(folder / "rules.yml"),)),
    )
    watch = hub.Hub(configured, time=clock.ManualClock(clock.from_ms(fleet.end_ms)))
    watch.open()
    assert isinstance(watch.engine, EmbeddedEngine)
    assert isinstance(watch.engine.head, durable.DurableStore)
    if not is_kept:
        fill(watch.engine.head, fleet)
    stop = asyncio.Event()
    listener = server.listen("127.0.0.1", port)
    async with asyncio.TaskGroup() as group:
        group.create_task(watch.run(stop))
        group.create_task(server.serve(app.create_app(watch, auth.Auth()), listener, stop=stop))


if __name__ == "__main__":
    memory.give_back_early()
    memory.collect_seldom()
    told = telemetry.Telemetry(int(sys.argv[3]), int(sys.argv[4]))
    asyncio.run(serve(Path(sys.argv[1]), int(sys.argv[2]), told, is_kept="kept" in sys.argv[5:]))
