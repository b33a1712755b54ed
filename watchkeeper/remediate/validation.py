"""Run the checks that a node must pass before it is uncordoned. Unknown is not passed.

A `validate` step names its checks. `repairs` runs each `Validator` repeatedly until all have passed, one has failed, or
the step times out. The validators here read the hub's store and journal; those of `node_checks` start a check on the
node once, and return unknown until its result arrives.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

from watchkeeper.catalogue import causes, xid
from watchkeeper.errors import WatchkeeperError
from watchkeeper.kit import clock, own_metrics
from watchkeeper.model import events, fleet
from watchkeeper.query import engine as engines

if TYPE_CHECKING:
    from watchkeeper.store.journal.journal import Journal

# The checks that the hub makes, with what each means; a step that names no check runs these.
CHECKS: Mapping[str, str] = {
    "gpus_present": "every expected GPU has reported since the repair",
    "conditions_clear": "no hardware fault of an open incident is active on the node",
    "no_new_xid": "no hardware Xid occurred since the repair, for remediate.xid_quiet",
}
# The checks that the node's agent makes, by work orders.
NODE_CHECKS: Mapping[str, str] = {
    "scan": "the node's scan reports healthy",
    "diag_2": "its GPUs pass `watchkeeper diag -r 2`: speed and correctness",
    "diag_3": "its GPUs pass `watchkeeper diag -r 3`: full load too",
}
# Full load takes minutes, so it is used only after a hardware fault.
AFTER_HARDWARE = frozenset({"diag_3"})
# A faulty GPU fails within minutes of use; a longer soak would only keep the node out of service.
SOAK = timedelta(minutes=5)
PRESENCE_METRIC = "DCGM_FI_DEV_GPU_TEMP"


class CheckState(StrEnum):
    PASSED = "passed"
    FAILED = "failed"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of a check. `failed` is final; `unknown` may still become `passed`."""

    check: str
    state: CheckState
    text: str

    def __str__(self) -> str:
        return f"{self.check}: {self.text}"


class Validator(Protocol):
    @property
    def name(self) -> str: ...

    def check(self, place: fleet.Place, since: datetime, now: datetime) -> CheckResult:
        """Check a node whose repair ended at `since`; fast, and safe to call repeatedly."""
        ...


def hub_validators(engine: engines.Engine, journal: Journal, *, soak: timedelta = SOAK) -> list[Validator]:
    """Return the validators of CHECKS, which read the hub's own data."""
    return [GpusPresent(engine), ConditionsClear(journal), NoNewXid(journal, soak)]


def run_checks(
    names: Iterable[str], validators: Mapping[str, Validator], place: fleet.Place, *, since: datetime, now: datetime
) -> tuple[CheckResult, ...]:
    """Return the result of each check; a check without a validator, or that failed to run, is unknown."""
    return tuple(_run_check(name, validators.get(name), place, since=since, now=now) for name in names)


def _run_check(
    name: str, validator: Validator | None, place: fleet.Place, *, since: datetime, now: datetime
) -> CheckResult:
    if validator is None:
        return CheckResult(name, CheckState.UNKNOWN, f"this hub cannot run the check {name}")
    try:
        return validator.check(place, since, now)
    except WatchkeeperError as error:
        return CheckResult(name, CheckState.UNKNOWN, f"the check {name} failed to run: {error}")


def node_selector(node: fleet.Place) -> str:
    return f'{{cluster="{own_metrics.escape(node.cluster)}",Hostname="{own_metrics.escape(node.node or "")}"}}'


@dataclass(frozen=True, slots=True)
class GpusPresent:
    engine: engines.Engine
    name: str = "gpus_present"

    def check(self, place: fleet.Place, since: datetime, now: datetime) -> CheckResult:
        selector = node_selector(place)
        expected = self._query_count(f"max(watchkeeper_node_expected_gpus{selector})", now)
        fresh_series = f"timestamp({PRESENCE_METRIC}{selector}) > {since.timestamp():.3f}"
        # Two exporters, or several MIG instances of a GPU, count as one GPU.
        reporting = self._query_count(f"count(count by (UUID) ({fresh_series}))", now) or 0
        if expected is None:
            text = f"{reporting} GPUs report, the expected number is unknown"
            return CheckResult(self.name, CheckState.UNKNOWN, text)
        state = CheckState.PASSED if reporting >= expected else CheckState.UNKNOWN
        return CheckResult(self.name, state, f"{reporting} of {expected} GPUs have reported since {since:%H:%M:%S}Z")

    def _query_count(self, expr: str, now: datetime) -> int | None:
        return next((round(value) for value in self.engine.instant(expr, clock.to_ms(now)).latest().values()), None)


@dataclass(frozen=True, slots=True)
class ConditionsClear:
    journal: Journal
    name: str = "conditions_clear"

    def check(self, place: fleet.Place, since: datetime, now: datetime) -> CheckResult:  # noqa: ARG002
        open_incidents = (self.journal.incident(id) for id in self.journal.open_incidents_at(place))
        active_faults = [
            member.text
            for incident in open_incidents
            if incident is not None
            for member in incident.members
            if member.until is None and causes.lookup(member.cause).is_hardware
        ]
        if active_faults:
            text = f"{len(active_faults)} hardware faults are active, such as: {active_faults[0][:200]}"
            return CheckResult(self.name, CheckState.UNKNOWN, text)
        return CheckResult(self.name, CheckState.PASSED, "no hardware fault is active")


@dataclass(frozen=True, slots=True)
class NoNewXid:
    journal: Journal
    soak: timedelta = SOAK
    name: str = "no_new_xid"

    def check(self, place: fleet.Place, since: datetime, now: datetime) -> CheckResult:
        for event in self.journal.events_at(place, since=since, until=now):
            # An Xid at the time of the repair is the one that was repaired.
            if event.at > since and event.kind is events.EventKind.XID and _is_hardware(event):
                text = f"Xid {event.code} at {event.at:%H:%M:%S}Z: {event.text[:200]}"
                return CheckResult(self.name, CheckState.FAILED, text)
        soaked, needed = (now - since).total_seconds(), self.soak.total_seconds()
        if soaked < needed:
            text = f"Soaking: {soaked:.0f} of {needed:.0f} s without a new Xid"
            return CheckResult(self.name, CheckState.UNKNOWN, text)
        return CheckResult(self.name, CheckState.PASSED, f"{needed:.0f} s without a new Xid")


def _is_hardware(event: events.Event) -> bool:
    return event.code is not None and causes.lookup(xid.lookup(event.code).cause).is_hardware
