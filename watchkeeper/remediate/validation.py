"""Run the checks that a node must pass before it is uncordoned. Unknown is not passed.

A `validate` step names its checks. `repairs` runs each `Validator` repeatedly until all have passed, one has failed, or
the step times out. A `NodeCheck` issues a work order at its first call, and is unknown until the receipt has a verdict.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Protocol

from watchkeeper.catalogue import causes, xid
from watchkeeper.errors import WatchkeeperError
from watchkeeper.kit import clock, own_metrics
from watchkeeper.model import events, fleet, orders
from watchkeeper.model.actions import Result
from watchkeeper.query import engine as engines
from watchkeeper.remediate.orders import OrderQueue, OrderRequest
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
# The check of a rack whose power limits are lowered.
COOL = "cool"
# Below the maximum operating temperature; full power heats a GPU by some degrees within minutes.
COOL_MARGIN_CELSIUS, COOL_FOR = 10.0, timedelta(minutes=10)
# Where no GPU reports its own limit: the highest one known, as in packs/rules/thermal.yaml.
DEFAULT_LIMIT_CELSIUS = 87.0
# Full load takes minutes, so it is used only after a hardware fault.
AFTER_HARDWARE = frozenset({"diag_3"})
# A faulty GPU fails within minutes of use; a longer soak would only keep the node out of service.
SOAK = timedelta(minutes=5)
UPTIME, BOOTED = "watchkeeper_host_uptime_seconds", "booted"
# A boot time moves by seconds when the clock of the node is set.
BOOT_JITTER_SECONDS, CLOCK_SLACK = 30.0, timedelta(minutes=10)
PRESENCE_METRIC = "DCGM_FI_DEV_GPU_TEMP"
ACTOR = "validation"
# A receipt without a verdict is ordered again: a driver may need a minute after a boot.
MAX_TRIES = 5
PAUSE = timedelta(minutes=1)


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
    return [GpusPresent(engine), ConditionsClear(journal), NoNewXid(journal, soak), DomainCool(engine)]


def run_checks(
    names: Iterable[str], validators: Mapping[str, Validator], place: fleet.Place, *, since: datetime, now: datetime
) -> tuple[CheckResult, ...]:
    """Return the result of each check; a check without a validator, or that failed to run, is unknown."""

    def run_check(name: str) -> CheckResult:
        if name not in validators:
            return CheckResult(name, CheckState.UNKNOWN, f"this hub cannot run the check {name}")
        try:
            return validators[name].check(place, since, now)
        except WatchkeeperError as error:
            return CheckResult(name, CheckState.UNKNOWN, f"the check {name} failed to run: {error}")

    return tuple(map(run_check, names))


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
            problem = f"{reporting} GPUs report, the expected number is unknown"
            return CheckResult(self.name, CheckState.UNKNOWN, problem)
        state = CheckState.PASSED if reporting >= expected else CheckState.UNKNOWN
        return CheckResult(self.name, state, f"{reporting} of {expected} GPUs have reported since {since:%H:%M:%S}Z")

    def _query_count(self, expr: str, now: datetime) -> int | None:
        return next((round(value) for value in self.engine.instant(expr, clock.to_ms(now)).latest().values()), None)


@dataclass(frozen=True, slots=True)
class DomainCool:
    """Whether every GPU of a rack has been well below its temperature limit for some time."""

    engine: engines.Engine
    name: str = COOL

    def check(self, place: fleet.Place, since: datetime, now: datetime) -> CheckResult:  # noqa: ARG002
        kind, _, domain = (place.domain or "").partition("=")
        cluster, seconds = own_metrics.escape(place.cluster), COOL_FOR.total_seconds()
        nodes = f'watchkeeper_node_info{{cluster="{cluster}",{kind}="{own_metrics.escape(domain)}"}}'

        def query(function: str, series: str) -> float | None:
            expr = f"{function}({series} and on (cluster, Hostname) {nodes})"
            return next(iter(self.engine.instant(expr, clock.to_ms(now)).latest().values()), None)

        hottest = query("max", f"max_over_time({PRESENCE_METRIC}[{seconds:.0f}s])")
        if hottest is None:
            return CheckResult(self.name, CheckState.UNKNOWN, f"no GPU of {domain} reports its temperature")
        limit = (query("min", "DCGM_FI_DEV_GPU_MAX_OP_TEMP > 0") or DEFAULT_LIMIT_CELSIUS) - COOL_MARGIN_CELSIUS
        text = f"the hottest GPU of {domain} was at {hottest:g} °C within {seconds / 60:g} minutes"
        state = CheckState.PASSED if hottest < limit else CheckState.UNKNOWN
        return CheckResult(self.name, state, f"{text}, the limit is {limit:g} °C")


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
class BootCheck:
    """Whether a node has booted since a reboot began: by its boot time, its uptime, or its kernel log."""

    engine: engines.Engine
    journal: Journal

    def check(self, place: fleet.Place, since: datetime, now: datetime) -> CheckResult | None:
        """Return the boot, or that it is awaited; None if no source has reported when this node boots."""
        clear = f"{place.node} booted at"
        # Clocks of nodes may be minutes off; the hub's own time of arrival is not.
        for event in self.journal.events_at(place, since=since - CLOCK_SLACK, until=now + CLOCK_SLACK):
            if event.kind is events.EventKind.NODE_BOOT and (event.received_at or event.at) > since:
                return CheckResult(BOOTED, CheckState.PASSED, f"{clear} {event.at:%H:%M:%S}Z, in its kernel log")
        before, after = self._boot_times(place, since), self._boot_times(place, now)
        for source, at in after.items():
            # Its first reading counts from the reboot on.
            if at - before.get(source, since.timestamp()) > BOOT_JITTER_SECONDS:
                text = f"{clear} {datetime.fromtimestamp(at, UTC):%H:%M:%S}Z ({source})"
                return CheckResult(BOOTED, CheckState.PASSED, text)
        if not before and not after:
            return None
        return CheckResult(BOOTED, CheckState.UNKNOWN, f"{place.node} has not booted since {since:%H:%M:%S}Z")

    def _boot_times(self, place: fleet.Place, at: datetime) -> Mapping[str, float]:
        """When the node booted, as each source reported it at this time."""
        cluster, node = own_metrics.escape(place.cluster), own_metrics.escape(place.node or "")
        instance = own_metrics.escape(re.escape(place.node or ""))
        exprs = {
            "node_boot_time_seconds": f'node_boot_time_seconds{{cluster="{cluster}",Hostname="{node}"}} or '
            f'node_boot_time_seconds{{cluster="{cluster}",instance=~"{instance}(:[0-9]+)?"}}',
            UPTIME: f"timestamp({UPTIME}{node_selector(place)}) - {UPTIME}{node_selector(place)}",
        }
        results = {name: self.engine.instant(f"max({expr})", clock.to_ms(at)).latest() for name, expr in exprs.items()}
        return {name: next(iter(values.values())) for name, values in results.items() if values}


@dataclass(frozen=True, slots=True)
class NoNewXid:
    journal: Journal
    soak: timedelta = SOAK
    name: str = "no_new_xid"

    def check(self, place: fleet.Place, since: datetime, now: datetime) -> CheckResult:
        for event in self.journal.events_at(place, since=since, until=now):
            # An Xid at the time of the repair is the one that was repaired.
            code = event.code if event.at > since and event.kind is events.EventKind.XID else None
            if code is not None and causes.lookup(xid.lookup(code).cause).is_hardware:
                text = f"Xid {event.code} at {event.at:%H:%M:%S}Z: {event.text[:200]}"
                return CheckResult(self.name, CheckState.FAILED, text)
        soaked, needed = (now - since).total_seconds(), self.soak.total_seconds()
        if soaked < needed:
            text = f"Soaking: {soaked:.0f} of {needed:.0f} s without a new Xid"
            return CheckResult(self.name, CheckState.UNKNOWN, text)
        return CheckResult(self.name, CheckState.PASSED, f"{needed:.0f} s without a new Xid")


def node_validators(order_queue: Callable[[], OrderQueue | None]) -> tuple[NodeCheck, ...]:
    return (
        NodeCheck(order_queue, "scan", "scan"),
        NodeCheck(order_queue, "diag_2", "diag", {"level": "2"}),
        NodeCheck(order_queue, "diag_3", "diag", {"level": "3"}),
    )


# The verdicts of `scan --json` and `diag --json`.
VERDICT_STATES: Mapping[str, CheckState] = {
    "healthy": CheckState.PASSED,
    "degraded": CheckState.FAILED,
    "unhealthy": CheckState.FAILED,
    "passed": CheckState.PASSED,
    "failed": CheckState.FAILED,
}


@dataclass(frozen=True, slots=True)
class NodeCheck:
    order_queue: Callable[[], OrderQueue | None]
    name: str
    kind: str
    arguments: Mapping[str, str] = field(default_factory=dict)

    def check(self, place: fleet.Place, since: datetime, now: datetime) -> CheckResult:
        queue, last_text = self.order_queue(), ""
        if queue is None or place.node is None:
            return self._unknown("this hub issues no work orders: hub.order_key_file is not set")
        for number in range(1, MAX_TRIES + 1):
            request = self._build_request(place, since, number)
            assert request.id is not None
            tracked = queue.find_order(request.id)
            if tracked is None or tracked.receipt is None:
                tracked = queue.issue(request, now=now, actor=ACTOR)
                if tracked.state(now) is orders.OrderState.EXPIRED:
                    last_text = f"the agent of {place.node} did not answer the order {self.kind}"
                    continue
                return self._unknown(f"{self.kind} of {place.node}: the work order is {tracked.state(now)}")
            result = self._read_receipt(tracked.receipt)
            if result.state is not CheckState.UNKNOWN or tracked.receipt.result is Result.REFUSED:
                return result
            last_text = result.text
            if abs(now - tracked.receipt.at) < PAUSE:
                return self._unknown(f"{last_text}; retried within {PAUSE.total_seconds():.0f} s")
        return self._unknown(f"{last_text}; {MAX_TRIES} tries failed, the limit is {MAX_TRIES}")

    def _build_request(self, place: fleet.Place, since: datetime, number: int) -> OrderRequest:
        assert place.node is not None
        # The id is the same after a restart of the hub, and different after another repair.
        key = json.dumps([place.cluster, place.node, self.name, since.timestamp()])
        id = f"check-{self.name}-{hashlib.sha256(key.encode()).hexdigest()[:24]}-{number}"
        lifetime = timedelta(seconds=orders.KINDS[self.kind].seconds) + orders.DEFAULT_LIFETIME
        why = f"{place.node} is validated before it is uncordoned"
        return OrderRequest(place.cluster, place.node, self.kind, self.arguments, why, lifetime, id)

    def _read_receipt(self, receipt: orders.Receipt) -> CheckResult:
        if receipt.result is not Result.DONE:
            return self._unknown(f"{receipt.result}: {receipt.text}")
        try:
            verdict = str(json.loads(receipt.output)["verdict"])
        except (ValueError, TypeError, KeyError):
            return self._unknown(f"{receipt.text}; its report has no verdict")
        return CheckResult(self.name, VERDICT_STATES.get(verdict, CheckState.UNKNOWN), f"{receipt.text} ({verdict})")

    def _unknown(self, text: str) -> CheckResult:
        return CheckResult(self.name, CheckState.UNKNOWN, text)
