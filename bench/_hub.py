"""Serve a hub whose memory is filled with telemetry: `python -m bench._hub FOLDER PORT GPUS SLOTS`.

With a further argument `kept` it reads the samples in its folder instead. Its clock stops at the end of the telemetry;
it has no targets and one rule that never fires, so that only the queries of a benchmark take time. Samples are loaded
as after a restart.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.manual_clock import ManualClock
from watchkeeper.config import settings

if TYPE_CHECKING:
    from bench import telemetry
    from watchkeeper.store import durable

SILENT_RULES = "groups: [{name: silent, rules: [{alert: Never, expr: vector(0) > 1}]}]\n"


def create_settings(folder: Path, port: int) -> settings.Settings:
    return settings.Settings(
        hub=settings.HubSettings(data=str(folder / "hub"), port=port),
        # All samples stay in memory, as in a Prometheus before its first block.
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


async def serve(folder: Path, port: int, fleet: telemetry.Telemetry, *, is_existing: bool) -> None:
    import asyncio

    from watchkeeper.cli.hub import serving
    from watchkeeper.hub import runtime, samples
    from watchkeeper.kit import clock
    from watchkeeper.query.embedded import EmbeddedEngine
    from watchkeeper.store import durable
    from watchkeeper.store.wal import wal_prefetch

    hub_settings, stop = create_settings(folder, port), asyncio.Event()
    (folder / "rules.yml").write_text(SILENT_RULES)
    with serving.open_listener(hub_settings) as listener:
        hub_samples = samples.Samples(runtime.Runtime(hub_settings, ManualClock(clock.from_ms(fleet.end_ms))))
        build = serving.HubBuilder(hub_samples)
        build_steps = serving.build_in_steps(build)
        wal_prefetch.run_while_reading(hub_settings.samples_path, build_steps)
        hub_samples.open()
        assert isinstance(hub_samples.engine, EmbeddedEngine)
        assert isinstance(hub_samples.engine.head, durable.DurableStore)
        if not is_existing:
            fill(hub_samples.engine.head, fleet)
        async with asyncio.TaskGroup() as group:
            await serving.serve_while_building(build, listener, group, steps=build_steps, stop=stop)


def main(folder: Path, port: int, *, gpus: int, slots: int, is_existing: bool) -> None:
    # As in `watchkeeper hub`.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from watchkeeper.kit import lazy_imports

    lazy_imports.enable()
    from watchkeeper.store.wal import wal_prefetch

    wal_prefetch.start_reading(create_settings(folder, port).samples_path)
    import asyncio

    from bench import telemetry
    from watchkeeper.kit import memory

    memory.release_eagerly()
    memory.collect_garbage_rarely()
    asyncio.run(serve(folder, port, telemetry.Telemetry(gpus, slots), is_existing=is_existing))


if __name__ == "__main__":
    folder_name, port, gpus, slots, *flags = sys.argv[1:]
    main(Path(folder_name), int(port), gpus=int(gpus), slots=int(slots), is_existing="kept" in flags)
