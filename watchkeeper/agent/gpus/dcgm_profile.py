"""Reads profiling metrics from DCGM for GPUs that have none in NVML: Volta to Ada have no GPM.

If `dcgmi` is installed and a GPU lacks these metrics, one `dcgmi dmon` runs beside the sampler, which calls
`add_metrics` for each GPU. On Hopper and later GPUs none of this runs.
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

POLL_SECONDS = 5.0
# The first GPM sample of a GPU has no values: a GPU without values for this many rounds has no GPM.
MIN_ROUNDS_WITHOUT = 5
RETRY_BACKOFF = backoff.Backoff(5.0, 300.0)
DISCOVERY_SECONDS = 10.0


@dataclass(slots=True)
class DcgmProfile:
    """DCGM's profiling metrics of one node: the sampler's thread adds them, the agent's loop runs dcgmi."""

    families: Sequence[NvmlFamily]
    interval_seconds: float
    environment: Mapping[str, str] | None = None
    monotonic: Callable[[], float] = time.monotonic
    _rounds_without: dict[str, int] = field(default_factory=dict)
    _latest: dict[str, tuple[float, Mapping[str, float]]] = field(default_factory=dict)
    _failures: int = 0
    _retry_at: float = float("-inf")
    _logged_problem: str = ""

    def __post_init__(self) -> None:
        field_ids = dcgmi.field_ids()
        self.families = [
            family for family in self.families if family.cadence is Cadence.PROFILE and family.name in field_ids
        ]

    def add_metrics(self, gpu: GpuSample) -> GpuSample:
        uuid = gpu.identity["uuid"]
        if Cadence.PROFILE in gpu.read_at:
            self._rounds_without.pop(uuid, None)
            return gpu
        self._rounds_without[uuid] = self._rounds_without.get(uuid, 0) + 1
        at, values = self._latest.get(uuid, (0.0, {}))
        if not values:
            return gpu
        return replace(gpu, values={**gpu.values, **values}, read_at={**gpu.read_at, Cadence.PROFILE: at})

    @property
    def is_needed(self) -> bool:
        return bool(self.families) and any(rounds >= MIN_ROUNDS_WITHOUT for rounds in self._rounds_without.values())

    async def run_if_needed(self, is_paused: Callable[[], bool]) -> None:
        """Run one dcgmi for as long as it is needed; return at once if it is not, or if the backoff is not over."""
        if not self.is_needed or is_paused() or self.monotonic() < self._retry_at:
            return
        # Imported here: it loads every compressor, and Hopper and later GPUs never need it.
        import shutil

        path = None if self.environment is None else self.environment.get("PATH")
        if shutil.which("dcgmi", path=path) is None:
            return
        try:
            problem = await self._follow_dmon(is_paused)
        except OSError as error:
            problem = f"dcgmi: {error.strerror}"
        finally:
            self._latest = {}
        if not problem:
            return
        self._failures += 1
        pause = RETRY_BACKOFF.delay_seconds(self._failures)
        self._retry_at = self.monotonic() + pause
        if problem != self._logged_problem:
            self._logged_problem = problem
            log.warning("dcgmi profiling failed", extra=logs.fields(problem=quote(problem), retry_seconds=pause))

    async def _follow_dmon(self, is_paused: Callable[[], bool]) -> str:
        """Record what one dcgmi prints; return why it exited, or an empty text if it was stopped."""
        runner = commands.CommandRunner(timeout_seconds=DISCOVERY_SECONDS, environment=self.environment)
        answer = await asyncio.to_thread(runner.run, dcgmi.DISCOVERY)
        uuids = dcgmi.read_discovery(answer.text.splitlines())
        if not uuids:
            last_lines = answer.text.strip().splitlines()[-1:]
            return f"dcgmi discovery lists no GPU: {last_lines[0] if last_lines else answer.outcome}"
        fields = sorted({dcgmi.field_ids()[family.name] for family in self.families})
        reader = dcgmi.DmonReader(fields)
        child = StreamingProcess(dcgmi.dmon_command(fields, self.interval_seconds), self.environment)
        try:
            last_line = ""
            async with aclosing(child.lines()) as lines:
                async for line in lines:
                    if is_paused() or not self.is_needed:
                        return ""
                    if line is not None:
                        last_line = line.decode("utf-8", "replace").strip() or last_line
                        self._record_row(reader.read(last_line), uuids)
            return child.read_errors() or f"dcgmi dmon exited; its last line: {last_line}"
        finally:
            child.close()

    def _record_row(self, row: tuple[int, Mapping[int, float]] | None, uuids: Mapping[int, str]) -> None:
        if row is None or row[0] not in uuids:
            return
        numbers, field_ids = row[1], dcgmi.field_ids()
        values: dict[str, float] = {}
        for family in self.families:
            if (number := numbers.get(field_ids[family.name])) is not None:
                values[family.name] = number if family.is_float else int(number)
        self._latest[uuids[row[0]]] = (self.monotonic(), values)
        if values:
            self._failures, self._logged_problem = 0, ""
