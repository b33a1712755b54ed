"""Who holds each GPU of this node, from every source that knows, or why nobody can be named.

    kubelet (pods) ─┐
    Slurm (jobs)  ──┼→ attribute → one Attribution for each GPU → attribution_page, and labels on the page
    NVML + /proc  ──┘

A scheduler's word names the holder, and holds while nothing runs yet; the programs on a GPU say how much of it each
holder uses, and who is there that no scheduler sent. `Attributor.refresh` asks the sources every two seconds, each with
its own deadline; a source that breaks keeps its last answer for a minute and is then said to have failed. `attribute`
decides, and is pure.
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

REFRESH_SECONDS = 2.0
# Longer than any source's own deadline; a source that ignores its deadline must not stop the others.
SOURCE_SECONDS = 4.0
NO_ANSWER = f"no answer within {SOURCE_SECONDS:g} s"
# A kubelet that restarts is back in seconds; what it said before is still so.
KEPT_SECONDS = 60.0
# Holders of one GPU that are told apart; a GPU with more has a leak of contexts.
MAX_HOLDINGS = 32
PROGRAMS = "programs"
# MIG's name before driver 470, MIG-GPU-0d7b8a1c-…/3/0: the GPU, its slice, its part of the slice.
OLD_SLICE = re.compile(r"^MIG-(GPU-[0-9a-fA-F-]{36})/(\d+)/\d+$")

T = TypeVar("T")
Holders = Mapping[str, tuple[Holding, ...]]


class HolderSource(Protocol):
    """Somebody who knows holders, by a GPU's or slice's UUID, by index (`3`), or by device file (`nvidia3`)."""

    async def read(self) -> Holders:
        """Raises CollectError where it cannot be known."""
        ...


@dataclass(frozen=True, slots=True)
class NamedSource:
    """A source as the agent wires it; one that is not there on this node is not asked and not missed."""

    name: str
    source: HolderSource
    is_present: Callable[[], bool] = lambda: True


@dataclass(frozen=True, slots=True)
class SourceAnswer:
    """What one source said last; `holders` None: it could not say, and `problem` is why."""

    name: str
    holders: Holders | None = None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class RunningProgram:
    """A program on a GPU and the workload it belongs to, as far as /proc tells."""

    program: Program
    workload: Workload
    # The pod's own name for itself, where the program is in one.
    pod_hostname: str = ""
    is_in_pod: bool = False


@dataclass(frozen=True, slots=True)
class GpuNames:
    """A GPU under all the names that sources use."""

    uuid: str
    names: frozenset[str]
    # A slice's UUID → its number on this GPU.
    slices: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, gpu: GpuSample) -> GpuNames:
        uuid, minor = gpu.identity["uuid"], gpu.identity.get("minor", "")
        names = frozenset({uuid, str(gpu.index), f"nvidia{minor}"})
        return cls(uuid, names, {part.uuid: str(part.id) for part in gpu.mig_instances if part.uuid})

    def match(self, name: str) -> tuple[bool, str | None]:
        """Whether a source means this GPU, and which slice of it."""
        if name in self.names:
            return True, None
        if name in self.slices:
            return True, self.slices[name]
        old = OLD_SLICE.match(name)
        return (True, old[2]) if old is not None and old[1] == self.uuid else (False, None)

    def could_match(self, name: str) -> bool:
        """Whether a name that nobody answers to could mean this GPU; another GPU's UUID cannot."""
        if name.startswith("GPU-"):
            return False
        return bool(self.slices) if name.startswith("MIG-") else True


def attribute(
    gpus: Sequence[GpuSample], told: Sequence[SourceAnswer], running: Mapping[str, Sequence[RunningProgram]]
) -> dict[str, Attribution]:
    """The attribution of every GPU, by UUID; `running` has the programs of each GPU that tells them."""
    devices = [GpuNames.of(gpu) for gpu in gpus]
    known = {name for source in told for name in source.holders or ()}
    strangers = sorted(name for name in known if not any(device.match(name)[0] for device in devices))
    found: dict[str, Attribution] = {}
    for device in devices:
        holdings = _scheduled(device, told)
        programs = running.get(device.uuid)
        if programs:
            holdings = _with_programs(holdings, programs)
        if holdings:
            found[device.uuid] = Attribution(tuple(holdings[:MAX_HOLDINGS]))
        else:
            near = [name for name in strangers if device.could_match(name)]
            found[device.uuid] = _nobody(told, near, tells_programs=programs is not None)
    return found


def _scheduled(device: GpuNames, told: Sequence[SourceAnswer]) -> list[Holding]:
    found: dict[tuple[Workload, str | None], Holding] = {}
    for source in told:
        for name, holdings in (source.holders or {}).items():
            is_meant, part = device.match(name)
            for holding in holdings if is_meant else ():
                own = part if part is not None else device.slices.get(holding.slice or "", holding.slice)
                found.setdefault((holding.workload, own), replace(holding, slice=own))
    return list(found.values())


def _with_programs(holdings: list[Holding], running: Sequence[RunningProgram]) -> list[Holding]:
    """The holdings with what their programs use of the GPU, and those that no scheduler knows."""
    all_of = list(holdings)
    busy: dict[int, int] = defaultdict(int)
    is_told = True
    for one in running:
        part = None if one.program.instance_id is None else str(one.program.instance_id)
        at = _holding_of(one, part, all_of)
        if at is None:
            at = len(all_of)
            all_of.append(Holding(one.workload, slice=part))
        if one.program.busy_percent is None:
            is_told = False
        else:
            busy[at] += one.program.busy_percent
    return _split(all_of, busy) if is_told else all_of


def _holding_of(one: RunningProgram, part: str | None, holdings: Sequence[Holding]) -> int | None:
    """Whose program this is. A holding of the whole GPU takes a program on any slice."""
    fitting = [at for at, held in enumerate(holdings) if part is None or held.slice in (None, part)]
    same = [at for at in fitting if _is_same(holdings[at].workload, one.workload)]
    if same:
        return same[0]
    if not one.is_in_pod:
        return None
    pods = [at for at in fitting if holdings[at].workload.kind is WorkloadKind.POD]
    named = [at for at in pods if holdings[at].workload.name == one.pod_hostname]
    if named:
        return named[0]
    return pods[0] if len(pods) == 1 else None


def _is_same(held: Workload, ran: Workload) -> bool:
    """A job is the same by its number; sources differ in whether they know its user."""
    if held.kind is not ran.kind or held.name != ran.name or held.namespace != ran.namespace:
        return False
    return held.kind is not WorkloadKind.PROGRAM or held == ran


def _split(holdings: list[Holding], busy: Mapping[int, int]) -> list[Holding]:
    """Shares of a GPU, or of each slice, that several hold; they sum to one, so the parts sum to the whole."""
    by_part: dict[str | None, list[int]] = defaultdict(list)
    for at, holding in enumerate(holdings):
        by_part[holding.slice].append(at)
    shared = list(holdings)
    for places in by_part.values():
        total = sum(busy.get(at, 0) for at in places)
        if len(places) > 1 and total > 0:
            for at in places:
                shared[at] = replace(holdings[at], share=busy.get(at, 0) / total)
    return shared


def _nobody(told: Sequence[SourceAnswer], strangers: Sequence[str], *, tells_programs: bool) -> Attribution:
    failed = [f"{source.name}: {source.problem}" for source in told if source.holders is None]
    if failed:
        return Attribution(reason=UnattributedReason.SOURCE_FAILED, detail="; ".join(failed)[:500])
    if strangers:
        shown = ", ".join(strangers[:4])
        detail = f"a source names {shown}, which NVML does not show"
        return Attribution(reason=UnattributedReason.UNKNOWN_DEVICE, detail=detail)
    asked = [source.name for source in told] + [PROGRAMS] * tells_programs
    if not asked:
        detail = "no kubelet, no Slurm, and the driver does not tell which programs use the GPU"
        return Attribution(reason=UnattributedReason.NO_SOURCE, detail=detail)
    return Attribution(reason=UnattributedReason.FREE, detail=f"asked {', '.join(asked)}")


@dataclass(slots=True)
class _CachedHolders:
    at: float
    holders: Holders


@dataclass(slots=True)
class Attributor:
    """Asks the sources again and again.

    `look_up` finds the workload of each program and reads files for it, so it runs in a thread; `failures` counts
    answers that did not come, by source.
    """

    sources: Sequence[NamedSource]
    look_up: Callable[[Sequence[Program]], Mapping[int, RunningProgram]]
    failures: own_metrics.Metric | None = None
    current: Mapping[str, Attribution] = field(default_factory=dict)
    _kept: dict[str, _CachedHolders] = field(default_factory=dict)
    _said: dict[str, str] = field(default_factory=dict)
    _asked: dict[str, asyncio.Task[Any]] = field(default_factory=dict)

    async def refresh(self, gpus: Sequence[GpuSample], now: float) -> Mapping[str, Attribution]:
        """Ask everyone once and decide; `now` is a clock that never jumps."""
        present = [named for named in self.sources if named.is_present()]
        told = await asyncio.gather(*(self._ask(named, now) for named in present))
        programs = [program for gpu in gpus for program in gpu.programs or ()]
        try:
            known = await self._answer(PROGRAMS, asyncio.to_thread(self.look_up, programs)) if programs else {}
        except TimeoutError:
            known, told = {}, [*told, SourceAnswer(PROGRAMS, None, NO_ANSWER)]
        running = {
            gpu.identity["uuid"]: [
                replace(known[program.pid], program=program) for program in gpu.programs if program.pid in known
            ]
            for gpu in gpus
            if gpu.programs is not None
        }
        self.current = attribute(gpus, told, running)
        self._say(self.current)
        return self.current

    async def _ask(self, named: NamedSource, now: float) -> SourceAnswer:
        try:
            holders = await self._answer(named.name, named.source.read())
        except TimeoutError:
            problem = NO_ANSWER
        except CollectError as error:
            problem = str(error)
        except Exception as error:  # Deliberately everything: a source that breaks in a new way is still one source.
            log.exception("A source of attribution broke", extra=logs.fields(source=named.name))
            problem = f"{type(error).__name__}: {error}"
        else:
            self._kept[named.name] = _CachedHolders(now, holders)
            return SourceAnswer(named.name, holders)
        if self.failures is not None:
            self.failures.add(source=named.name)
        kept = self._kept.get(named.name)
        if kept is not None and now - kept.at < KEPT_SECONDS:
            return SourceAnswer(named.name, kept.holders, problem)
        return SourceAnswer(named.name, None, problem)

    async def _answer(self, name: str, question: Coroutine[Any, Any, T]) -> T:
        """The answer, or TimeoutError. While one hangs it is not asked for again.

        A thread that reads from a program in an uninterruptible wait is lost until that ends; it must stay alone.
        """
        late = self._asked.get(name)
        if late is not None and not late.done():
            question.close()
            raise TimeoutError
        if late is not None and not late.cancelled():
            # Whatever it has come to, it is too old; Python complains about an error that nobody looks at.
            late.exception()
        asked: asyncio.Task[T] = asyncio.create_task(question)
        self._asked[name] = asked
        try:
            await asyncio.wait([asked], timeout=SOURCE_SECONDS)
        finally:
            if asked.done():
                del self._asked[name]
        if not asked.done():
            raise TimeoutError
        return asked.result()

    def _say(self, current: Mapping[str, Attribution]) -> None:
        """Log a gap when it opens and when it closes; a free GPU is none."""
        for uuid, attribution in current.items():
            reason = attribution.reason
            gap = "" if reason in (None, UnattributedReason.FREE) else str(reason)
            if gap != self._said.get(uuid, ""):
                where = {"gpu": uuid, "reason": gap or "known again", "detail": attribution.detail}
                log.warning("Holder of a GPU", extra=logs.fields(**where))
        self._said = {
            uuid: str(one.reason) for uuid, one in current.items() if one.reason not in (None, UnattributedReason.FREE)
        }
