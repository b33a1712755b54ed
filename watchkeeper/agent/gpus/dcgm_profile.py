"""Profiling metrics through DCGM, for GPUs on which NVML has none: Volta to Ada have no GPM.

Where `dcgmi` is installed and a GPU lacks them, one `dcgmi dmon` runs beside the sampler, which asks `profiled` for
each GPU it shows. A number is shown for two intervals after it came and then no more; when dcgmi ends it is started
again, ever more rarely. On Hopper and later nothing of this runs.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace

from watchkeeper.agent.gpus.gpu_samples import GpuSample
from watchkeeper.agent.kernel.streaming_process import StreamingProcess
from watchkeeper.errors import quote
from watchkeeper.kit import backoff, commands, logs
from watchkeeper.readers import dcgmi
from watchkeeper.readers.nvml.families import Cadence, NvmlFamily

log = logging.getLogger(__name__)

LOOK_SECONDS = 5.0
# The first GPM sample of a GPU says nothing yet: only one that stays without has no GPM.
ROUNDS_WITHOUT = 5
PAUSES = backoff.Backoff(5.0, 300.0)
DISCOVERY_SECONDS = 10.0


@dataclass(slots=True)
class DcgmProfile:
    """One node's; `profiled` is called in the sampler's thread, `look` by the agent's loop."""

    families: Sequence[NvmlFamily]
    interval_seconds: float
    environment: Mapping[str, str] | None = None
    monotonic: Callable[[], float] = time.monotonic
    _without: dict[str, int] = field(default_factory=dict)
    _latest: dict[str, tuple[float, Mapping[str, float]]] = field(default_factory=dict)
    _failures: int = 0
    _not_before: float = float("-inf")
    _said: str = ""

    def __post_init__(self) -> None:
        numbers = dcgmi.field_ids()
        wanted = [family for family in self.families if family.cadence is Cadence.PROFILE and family.name in numbers]
        self.families = wanted

    def add_metrics(self, gpu: GpuSample) -> GpuSample:
        """The GPU with DCGM's numbers, if NVML has none and DCGM has."""
        uuid = gpu.identity["uuid"]
        if Cadence.PROFILE in gpu.read_at:
            self._without.pop(uuid, None)
            return gpu
        self._without[uuid] = self._without.get(uuid, 0) + 1
        at, values = self._latest.get(uuid, (0.0, {}))
        if not values:
            return gpu
        return replace(gpu, values={**gpu.values, **values}, read_at={**gpu.read_at, Cadence.PROFILE: at})

    @property
    def is_needed(self) -> bool:
        return bool(self.families) and any(rounds >= ROUNDS_WITHOUT for rounds in self._without.values())

    async def run_if_needed(self, is_paused: Callable[[], bool]) -> None:
        """Run one dcgmi for as long as it is needed and lives; returns at once if it is not, or not yet again."""
        if not self.is_needed or is_paused() or self.monotonic() < self._not_before:
            return
        # Here, because it brings every compressor along, and on Hopper and later nobody comes here.
        import shutil

        path = None if self.environment is None else self.environment.get("PATH")
        if shutil.which("dcgmi", path=path) is None:
            return
        try:
            problem = await self._follow(is_paused)
        except OSError as error:
            problem = f"dcgmi: {error.strerror}"
        finally:
            self._latest = {}
        if not problem:
            return
        self._failures += 1
        pause = PAUSES.delay_seconds(self._failures)
        self._not_before = self.monotonic() + pause
        if problem != self._said:
            self._said = problem
            log.warning(
                "No profiling metrics through DCGM",
                extra=logs.fields(problem=quote(problem), retry_seconds=pause),
            )

    async def _follow(self, is_paused: Callable[[], bool]) -> str:
        """Take in what one dcgmi prints; in the end why it ended, or nothing if we wanted it to."""
        ask = commands.CommandRunner(timeout_seconds=DISCOVERY_SECONDS, environment=self.environment)
        answer = await asyncio.to_thread(ask.run, dcgmi.DISCOVERY)
        uuids = dcgmi.read_discovery(answer.text.splitlines())
        if not uuids:
            said = answer.text.strip().splitlines()[-1:]
            return f"dcgmi discovery names no GPU: {said[0] if said else answer.outcome}"
        fields = sorted({dcgmi.field_ids()[family.name] for family in self.families})
        monitor = dcgmi.DmonReader(fields)
        child = StreamingProcess(dcgmi.arguments(fields, self.interval_seconds), self.environment)
        try:
            last = ""
            async with aclosing(child.lines()) as lines:
                async for line in lines:
                    if is_paused() or not self.is_needed:
                        return ""
                    if line is not None:
                        last = line.decode("utf-8", "replace").strip() or last
                        self._take(monitor.read(last), uuids)
            return child.complaint() or f"dcgmi dmon ended; it last said {last}"
        finally:
            child.close()

    def _take(self, found: tuple[int, Mapping[int, float]] | None, uuids: Mapping[int, str]) -> None:
        if found is None or found[0] not in uuids:
            return
        numbers, ids = found[1], dcgmi.field_ids()
        values: dict[str, float] = {}
        for family in self.families:
            if (number := numbers.get(ids[family.name])) is not None:
                values[family.name] = number if family.is_float else int(number)
        self._latest[uuids[found[0]]] = (self.monotonic(), values)
        if values:
            self._failures, self._said = 0, ""
