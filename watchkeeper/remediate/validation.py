"""Validation: named checks that a node must pass before it is given back. Unknown is not passed.

A `validate` step names its checks; `repairs` asks each `Validator` again and again until all have passed, one has
failed for good, or the step's time is over. The ones here ask the hub's own store and journal. A check that has to
be run on the node is a `Validator` too: `check` starts it once and answers unknown until its result is there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Protocol

from watchkeeper.catalogue import causes, xid
from watchkeeper.errors import WatchkeeperError
from watchkeeper.kit import clock, own_metrics
from watchkeeper.model import events, fleet, incidents
from watchkeeper.query import engine as engines

# Every name that a policy may use, with what it means.
CHECKS: Mapping[str, str] = {
    "gpus_present": "every expected GPU has reported since the repair",
    "conditions_clear": "no hardware fault of an open incident lasts at the node",
    "no_new_xid": "no Xid that speaks of hardware came since the repair, for some minutes",
}
# The same for checks that the node's agent makes, by work orders. A step that names no check asks those above.
NODE_CHECKS: Mapping[str, str] = {
    "scan": "the node's own scan says that it is healthy",
    "diag_2": "its GPUs pass `watchkeeper diag -r 2`: speed and correctness",
    "diag_3": "its GPUs pass `watchkeeper diag -r 3`: full load too",
}
# Full load takes minutes: it is for a node whose hardware was at fault.
AFTER_HARDWARE = frozenset({"diag_3"})
# A GPU that is still bad shows it within minutes of being used; longer would only keep the node away.
QUIET = timedelta(minutes=5)
PRESENCE_METRIC = "DCGM_FI_DEV_GPU_TEMP"


class CheckState(StrEnum):
    PASSED = "passed"
    FAILED = "failed"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class CheckResult:
    """`failed` is for good; what may still come right is `unknown`."""

    check: str
    state: CheckState
    text: str


class Validator(Protocol):
    @property
    def name(self) -> str: ...

    def check(self, place: fleet.Place, since: datetime, now: datetime) -> CheckResult:
        """What is so at `now` at a node whose repair ended at `since`; quick, and the same when asked twice."""
        ...


class ValidationJournal(Protocol):
    """What the checks need of a journal."""

    def events_at(
        self, place: fleet.Place, *, since: datetime, until: datetime, limit: int = 1000
    ) -> list[events.Event]: ...

    def open_incidents_at(self, node: fleet.Place) -> list[str]: ...

    def incident(self, id: str) -> incidents.Incident | None: ...


def hub_validators(engine: engines.Engine, records: ValidationJournal, *, quiet: timedelta = QUIET) -> list[Validator]:
    """Those that ask the hub itself; the keys of CHECKS."""
    return [GpusPresent(engine), ConditionsClear(records), NoNewXid(records, quiet)]


def run_checks(
    names: Iterable[str], known: Mapping[str, Validator], place: fleet.Place, *, since: datetime, now: datetime
) -> list[CheckResult]:
    """The verdict of each; a check that nobody can make, or that broke, is unknown."""
    return [_ask_one(name, known.get(name), place, since=since, now=now) for name in names]


def _ask_one(
    name: str, validator: Validator | None, place: fleet.Place, *, since: datetime, now: datetime
) -> CheckResult:
    if validator is None:
        return CheckResult(name, CheckState.UNKNOWN, "nobody here can make this check")
    try:
        return validator.check(place, since, now)
    except WatchkeeperError as error:
        return CheckResult(name, CheckState.UNKNOWN, f"could not be asked: {error}")


@dataclass(frozen=True, slots=True)
class GpusPresent:
    engine: engines.Engine
    name: str = "gpus_present"

    def check(self, place: fleet.Place, since: datetime, now: datetime) -> CheckResult:
        where = f'{{cluster="{own_metrics.escape(place.cluster)}",Hostname="{own_metrics.escape(place.node or "")}"}}'
        expected = self._number(f"max(watchkeeper_node_expected_gpus{where})", now)
        fresh = f"timestamp({PRESENCE_METRIC}{where}) > {since.timestamp():.3f}"
        # Two exporters, or the slices of one GPU, are still one GPU.
        found = self._number(f"count(count by (UUID) ({fresh}))", now) or 0
        if expected is None:
            return CheckResult(self.name, CheckState.UNKNOWN, f"{found} GPUs report, and nobody knows how many should")
        standing = CheckState.PASSED if found >= expected else CheckState.UNKNOWN
        return CheckResult(self.name, standing, f"{found} of {expected} GPUs have reported since {since:%H:%M:%S}Z")

    def _number(self, expr: str, now: datetime) -> int | None:
        return next((round(value) for value in self.engine.instant(expr, clock.to_ms(now)).latest().values()), None)


@dataclass(frozen=True, slots=True)
class ConditionsClear:
    records: ValidationJournal
    name: str = "conditions_clear"

    def check(self, place: fleet.Place, since: datetime, now: datetime) -> CheckResult:  # noqa: ARG002
        found = (self.records.incident(id) for id in self.records.open_incidents_at(place))
        lasting = [
            member.text
            for incident in found
            if incident is not None
            for member in incident.members
            if member.until is None and causes.lookup(member.cause).is_hardware
        ]
        if lasting:
            return CheckResult(self.name, CheckState.UNKNOWN, f"{len(lasting)} still last, such as: {lasting[0][:200]}")
        return CheckResult(self.name, CheckState.PASSED, "no hardware fault lasts")


@dataclass(frozen=True, slots=True)
class NoNewXid:
    records: ValidationJournal
    quiet: timedelta = QUIET
    name: str = "no_new_xid"

    def check(self, place: fleet.Place, since: datetime, now: datetime) -> CheckResult:
        found = self.records.events_at(place, since=since, until=now)
        # What came at the very moment of the repair is what was repaired.
        bad = [one for one in found if one.at > since and one.kind is events.EventKind.XID and _is_hardware(one)]
        if bad:
            return CheckResult(
                self.name, CheckState.FAILED, f"Xid {bad[0].code} at {bad[0].at:%H:%M:%S}Z: {bad[0].text[:200]}"
            )
        waited, needed = (now - since).total_seconds(), self.quiet.total_seconds()
        standing = CheckState.PASSED if waited >= needed else CheckState.UNKNOWN
        return CheckResult(self.name, standing, f"none for {min(waited, needed):.0f} s of {needed:.0f} s")


def _is_hardware(event: events.Event) -> bool:
    return event.code is not None and causes.lookup(xid.lookup(event.code).cause).is_hardware
