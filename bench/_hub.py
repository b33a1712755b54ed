"""A hub whose memory is filled with telemetry, served as users reach it: `python -m bench._hub FOLDER PORT GPUS SLOTS`.

With `kept` behind that it reads what lies in its folder instead.
Its clock stands still at the end of the telemetry, it has no targets and one rule that never fires, so that nothing
but the questions of a bench takes time. Samples come in as after a restart.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from watchkeeper.config import settings

if TYPE_CHECKING:
    from bench import telemetry
    from watchkeeper.store import durable

SILENT_RULES = "groups: [{name: silent, rules: [{alert: Never, expr: vector(0) > 1}]}]\n"


def configured(folder: Path, port: int) -> settings.Settings:
    return settings.Settings(
        hub=settings.HubSettings(data=str(folder / "hub"), port=port),
        # Everything stays in memory, as in a Prometheus that has not cut its first block.
        query=settings.QuerySettings(memory="3h", block="12h"),
        rules=settings.RulesSettings(files=(str(folder / "rules.yml"),)),
    )


def fill(store: durable.DurableStore, fleet: telemetry.Telemetry) -> None:
    import numpy as np

    from watchkeeper.store.rows import split_by_width

    readings = dict(fleet.metrics())
    for node in range(fleet.nodes):
        gpus = fleet.gpus_of(node)
        ids = np.array([store.series_id(fleet.labels(metric, gpu)) for metric in readings for gpu in gpus])
        rows = np.concatenate([values[gpus.start : gpus.stop] for values in readings.values()])
        order, table = split_by_width(rows)
        store.head.load_scrapes(f"node-{node}", ids[order], fleet.times_ms(node), rows=table)


async def serve(folder: Path, port: int, fleet: telemetry.Telemetry, *, is_kept: bool) -> None:
    import asyncio

    from watchkeeper.cli.hub import serving
    from watchkeeper.hub import runtime, samples
    from watchkeeper.kit import clock
    from watchkeeper.query.embedded import EmbeddedEngine
    from watchkeeper.store import durable
    from watchkeeper.store.wal import wal_prefetch

    chosen, stop = configured(folder, port), asyncio.Event()
    (folder / "rules.yml").write_text(SILENT_RULES)
    with serving.open_listener(chosen) as door:
        kept = samples.Samples(runtime.Runtime(chosen, clock.ManualClock(clock.from_ms(fleet.end_ms))))
        build = serving.HubBuilder(kept)
        rest = serving.build_in_steps(build)
        wal_prefetch.run_while_reading(chosen.samples_path, rest)
        kept.open()
        assert isinstance(kept.engine, EmbeddedEngine)
        assert isinstance(kept.engine.head, durable.DurableStore)
        if not is_kept:
            fill(kept.engine.head, fleet)
        async with asyncio.TaskGroup() as group:
            await serving.serve_while_building(build, door, group, steps=rest, stop=stop)


def main(folder: Path, port: int, *, gpus: int, slots: int, is_kept: bool) -> None:
    # As `watchkeeper hub` does it.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from watchkeeper.kit import lazy_imports

    lazy_imports.enable()
    from watchkeeper.store.wal import wal_prefetch

    wal_prefetch.start_reading(configured(folder, port).samples_path)
    import asyncio

    from bench import telemetry
    from watchkeeper.kit import memory

    memory.release_eagerly()
    memory.collect_garbage_rarely()
    asyncio.run(serve(folder, port, telemetry.Telemetry(gpus, slots), is_kept=is_kept))


if __name__ == "__main__":
    place, port, gpus, slots, *words = sys.argv[1:]
    main(Path(place), int(port), gpus=int(gpus), slots=int(slots), is_kept="kept" in words)
