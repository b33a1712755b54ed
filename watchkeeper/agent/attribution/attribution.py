"""Finds the workload that holds each GPU of this node, or the reason why it is unknown.

    kubelet (pods) ─┐
    Slurm (jobs)  ──┼→ attribute → one Attribution for each GPU → node_holders, and labels on the page
    NVML + /proc  ──┘

A scheduler names the holder, also before its first process runs; the processes on a GPU show each holder's share of it,
and the holders that no scheduler started. `Attributor.refresh` reads the sources every two seconds; a source that fails
keeps its last result for a minute.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections import defaultdict
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeVar

from watchkeeper.agent.gpus.gpu_samples import GpuSample, Program
from watchkeeper.errors import CollectError
from watchkeeper.kit import logs, own_metrics
from watchkeeper.model.workloads import Attribution, Holding, UnattributedReason, Workload, WorkloadKind

log = logging.getLogger(__name__)

# Longer than any source's own timeout; a source that ignores its timeout must not block the others.
SOURCE_TIMEOUT_SECONDS = 4.0
NO_ANSWER = f"no answer within {SOURCE_TIMEOUT_SECONDS:g} s"
# A restarted kubelet answers again within seconds; until then its last result is valid.
STALE_SECONDS = 60.0
# Limit of holders of one GPU; a GPU with more leaks contexts.
MAX_HOLDINGS = 32
PROGRAMS = "programs"
# A MIG UUID before driver 470, MIG-GPU-0d7b8a1c-…/3/0: the GPU, the GPU instance, the compute instance.
OLD_MIG_UUID = re.compile(r"^MIG-(GPU-[0-9a-fA-F-]{36})/(\d+)/\d+$")

T = TypeVar("T")
Holders = Mapping[str, tuple[Holding, ...]]


class HolderSource(Protocol):
    """Reads holders by the UUID of a GPU or MIG instance, by index (`3`), or by device file (`nvidia3`)."""

    async def read(self) -> Holders: ...


@dataclass(frozen=True, slots=True)
class NamedSource:
    """A source with its name; if it is not present on this node, it is not read and is not a failure."""

    name: str
    source: HolderSource
    is_present: Callable[[], bool] = lambda: True


@dataclass(frozen=True, slots=True)
class SourceResult:
    """The last result of one source; `holders` None: it failed, and `problem` is the reason."""

    name: str
    holders: Holders | None = None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class RunningProgram:
    program: Program
    workload: Workload
    # The hostname of its pod, if it runs in one.
    pod_hostname: str = ""
    is_in_pod: bool = False


@dataclass(frozen=True, slots=True)
class GpuNames:
    """A GPU with all names that sources use for it."""

    uuid: str
    names: frozenset[str]
    # UUID of a MIG instance → its id on this GPU.
    instance_ids: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def from_sample(cls, gpu: GpuSample) -> GpuNames:
        uuid, minor = gpu.identity["uuid"], gpu.identity.get("minor", "")
        names = frozenset({uuid, str(gpu.index), f"nvidia{minor}"})
        return cls(uuid, names, {instance.uuid: str(instance.id) for instance in gpu.mig_instances if instance.uuid})

    def match(self, name: str) -> tuple[bool, str | None]:
        """Whether the name of a source is this GPU, and the id of the MIG instance if it is one."""
        if name in self.names:
            return True, None
        if name in self.instance_ids:
            return True, self.instance_ids[name]
        old_uuid = OLD_MIG_UUID.match(name)
        return (True, old_uuid[2]) if old_uuid is not None and old_uuid[1] == self.uuid else (False, None)

    def could_match(self, name: str) -> bool:
        """Whether a name that matches no GPU could be this GPU; another GPU's UUID cannot."""
        if name.startswith("GPU-"):
            return False
        return bool(self.instance_ids) if name.startswith("MIG-") else True


def attribute(
    gpus: Sequence[GpuSample], results: Sequence[SourceResult], running: Mapping[str, Sequence[RunningProgram]]
) -> dict[str, Attribution]:
    """The attribution of every GPU, by UUID; `running` has the processes of each GPU that reports them."""
    devices = [GpuNames.from_sample(gpu) for gpu in gpus]
    names = {name for source in results for name in source.holders or ()}
    unmatched = sorted(name for name in names if not any(device.match(name)[0] for device in devices))
    attributions: dict[str, Attribution] = {}
    for device in devices:
        holdings = _find_scheduled(device, results)
        programs = running.get(device.uuid)
        if programs:
            holdings = _add_programs(holdings, programs)
        if holdings:
            attributions[device.uuid] = Attribution(tuple(holdings[:MAX_HOLDINGS]))
        else:
            candidates = [name for name in unmatched if device.could_match(name)]
            attributions[device.uuid] = _explain_gap(results, candidates, reads_programs=programs is not None)
    return attributions


def _find_scheduled(device: GpuNames, results: Sequence[SourceResult]) -> list[Holding]:
    holdings_by_key: dict[tuple[Workload, str | None], Holding] = {}
    for source in results:
        for name, holdings in (source.holders or {}).items():
            is_match, instance_id = device.match(name)
            for holding in holdings if is_match else ():
                slice_id = instance_id
                if slice_id is None:
                    slice_id = device.instance_ids.get(holding.slice or "", holding.slice)
                holdings_by_key.setdefault((holding.workload, slice_id), replace(holding, slice=slice_id))
    return list(holdings_by_key.values())


def _add_programs(holdings: list[Holding], running: Sequence[RunningProgram]) -> list[Holding]:
    """The holdings with their shares of the GPU, and those of processes that no scheduler started."""
    merged = list(holdings)
    busy_percents: dict[int, int] = defaultdict(int)
    has_utilisation = True
    for owned in running:
        program = owned.program
        instance_id = None if program.instance_id is None else str(program.instance_id)
        position = _find_holding(owned, instance_id, merged)
        if position is None:
            position = len(merged)
            merged.append(Holding(owned.workload, slice=instance_id))
        if program.busy_percent is None:
            has_utilisation = False
        else:
            busy_percents[position] += program.busy_percent
    return _assign_shares(merged, busy_percents) if has_utilisation else merged


def _find_holding(running: RunningProgram, instance_id: str | None, holdings: Sequence[Holding]) -> int | None:
    """The position of a process' holding; a holding of the whole GPU covers processes on every MIG instance."""
    candidates = [
        (position, holding.workload)
        for position, holding in enumerate(holdings)
        if instance_id is None or holding.slice in (None, instance_id)
    ]
    for position, workload in candidates:
        if _is_same_workload(workload, running.workload):
            return position
    if not running.is_in_pod:
        return None
    pods = [(position, workload) for position, workload in candidates if workload.kind is WorkloadKind.POD]
    for position, workload in pods:
        if workload.name == running.pod_hostname:
            return position
    return pods[0][0] if len(pods) == 1 else None


def _is_same_workload(left: Workload, right: Workload) -> bool:
    """Whether two workloads are the same; jobs are compared by number, because not every source knows the user."""
    if (left.kind, left.name, left.namespace) != (right.kind, right.name, right.namespace):
        return False
    return left.kind is not WorkloadKind.PROGRAM or left == right


def _assign_shares(holdings: list[Holding], busy_percents: Mapping[int, int]) -> list[Holding]:
    """Set the shares of a GPU or MIG instance that several workloads hold; they sum to 1."""
    positions_by_slice: dict[str | None, list[int]] = defaultdict(list)
    for position, holding in enumerate(holdings):
        positions_by_slice[holding.slice].append(position)
    shared = list(holdings)
    for positions in positions_by_slice.values():
        total = sum(busy_percents.get(position, 0) for position in positions)
        if len(positions) > 1 and total > 0:
            for position in positions:
                shared[position] = replace(holdings[position], share=busy_percents.get(position, 0) / total)
    return shared


def _explain_gap(results: Sequence[SourceResult], unmatched: Sequence[str], *, reads_programs: bool) -> Attribution:
    problems = [f"{source.name}: {source.problem}" for source in results if source.holders is None]
    if problems:
        return Attribution(reason=UnattributedReason.SOURCE_FAILED, detail="; ".join(problems)[:500])
    if unmatched:
        names = ", ".join(unmatched[:4])
        detail = f"a source lists {names}, which NVML does not list"
        return Attribution(reason=UnattributedReason.UNKNOWN_DEVICE, detail=detail)
    checked = [source.name for source in results] + [PROGRAMS] * reads_programs
    if not checked:
        detail = "no kubelet, no Slurm, and the driver does not report which processes use the GPU"
        return Attribution(reason=UnattributedReason.NO_SOURCE, detail=detail)
    return Attribution(reason=UnattributedReason.FREE, detail=f"checked {', '.join(checked)}")


@dataclass(slots=True)
class Attributor:
    """Reads the sources repeatedly; `find_workloads` runs in a thread, `failures` counts failed reads by source."""

    sources: Sequence[NamedSource]
    find_workloads: Callable[[Sequence[Program]], Mapping[int, RunningProgram]]
    failures: own_metrics.Metric | None = None
    current: Mapping[str, Attribution] = field(default_factory=dict)
    # The last good result of each source, with its time.
    _cache: dict[str, tuple[float, Holders]] = field(default_factory=dict)
    _logged_gaps: dict[str, str] = field(default_factory=dict)
    _tasks: dict[str, asyncio.Task[Any]] = field(default_factory=dict)

    async def refresh(self, gpus: Sequence[GpuSample], now: float) -> Mapping[str, Attribution]:
        """Read every source once and decide; `now` is monotonic time."""
        present = [source for source in self.sources if source.is_present()]
        results = await asyncio.gather(*(self._read_source(source, now) for source in present))
        programs = [program for gpu in gpus for program in gpu.programs or ()]
        workloads: Mapping[int, RunningProgram] = {}
        try:
            if programs:
                workloads = await self._await_read(PROGRAMS, asyncio.to_thread(self.find_workloads, programs))
        except TimeoutError:
            results = [*results, SourceResult(PROGRAMS, None, NO_ANSWER)]
        running = {
            gpu.identity["uuid"]: [
                replace(workloads[program.pid], program=program) for program in gpu.programs if program.pid in workloads
            ]
            for gpu in gpus
            if gpu.programs is not None
        }
        self.current = attribute(gpus, results, running)
        self._log_gaps(self.current)
        return self.current

    async def _read_source(self, source: NamedSource, now: float) -> SourceResult:
        try:
            holders = await self._await_read(source.name, source.source.read())
        except TimeoutError:
            problem = NO_ANSWER
        except CollectError as error:
            problem = str(error)
        except Exception as error:  # Deliberately everything: a source must not stop the others.
            log.exception("attribution source failed", extra=logs.fields(source=source.name))
            problem = f"{type(error).__name__}: {error}"
        else:
            self._cache[source.name] = (now, holders)
            return SourceResult(source.name, holders)
        if self.failures is not None:
            self.failures.add(source=source.name)
        read_at, cached = self._cache.get(source.name, (float("-inf"), None))
        return SourceResult(source.name, cached if now - read_at < STALE_SECONDS else None, problem)

    async def _await_read(self, name: str, read: Coroutine[Any, Any, T]) -> T:
        """Wait for a read of a source, or raise TimeoutError; while one hangs in the kernel, no other is started."""
        previous = self._tasks.get(name)
        if previous is not None and not previous.done():
            read.close()
            raise TimeoutError
        if previous is not None and not previous.cancelled():
            # Its result is too old to use; Python warns about an exception that is never retrieved.
            previous.exception()
        task: asyncio.Task[T] = asyncio.create_task(read)
        self._tasks[name] = task
        try:
            await asyncio.wait([task], timeout=SOURCE_TIMEOUT_SECONDS)
        finally:
            if task.done():
                del self._tasks[name]
        if not task.done():
            raise TimeoutError
        return task.result()

    def _log_gaps(self, current: Mapping[str, Attribution]) -> None:
        """Log when the holder of a GPU becomes unknown and when it is known again; a free GPU has none."""
        gaps = {
            uuid: str(attribution.reason)
            for uuid, attribution in current.items()
            if attribution.reason not in (None, UnattributedReason.FREE)
        }
        for uuid, attribution in current.items():
            gap = gaps.get(uuid)
            if gap is not None and gap != self._logged_gaps.get(uuid):
                log.warning("gpu holder unknown", extra=logs.fields(gpu=uuid, reason=gap, detail=attribution.detail))
            elif gap is None and uuid in self._logged_gaps:
                log.info("gpu holder known again", extra=logs.fields(gpu=uuid, detail=attribution.detail))
        self._logged_gaps = gaps
