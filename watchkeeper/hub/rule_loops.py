"""Load, evaluate and reload rules while the hub runs.

Rules are evaluated and replaced on one thread, so a reload happens between two evaluations. All due groups are
evaluated in one call on that thread: a busy event loop can take a second to resume a task, which after each group would
delay the last group by seconds. If a server owns the rules, the hub follows its alerts and reloads nothing.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import TypeVar

from watchkeeper.config import settings as config
from watchkeeper.errors import HubError, WatchkeeperError
from watchkeeper.hub import pipeline
from watchkeeper.hub.runtime import Loop
from watchkeeper.kit import clock, files, own_metrics
from watchkeeper.kit.logs import fields
from watchkeeper.model import alerts, labels
from watchkeeper.query.remote import http as remote_http
from watchkeeper.query.remote import server_rules
from watchkeeper.rules import evaluate, rulefile, slo
from watchkeeper.rules import reload as reloads
from watchkeeper.scrape import prometheus_config

log = logging.getLogger(__name__)
T = TypeVar("T")

PACKS = Path(__file__).parents[1] / "packs"
SHIPPED_RULES = PACKS / "rules"
SHIPPED_SLOS = PACKS / "slo.yaml"
# How often rule files are checked for changes; also the longest wait for a new group.
FILE_CHECK_SECONDS = 30.0
# Multiples of two intervals for the same time can differ by rounding.
SAME_SECONDS = 0.001
# Missed evaluations of a group that are run later; older ones are skipped and counted.
MAX_CAUGHT_UP = 15
# Evaluations whose changed alerts may wait for the journal; beyond that, evaluation waits too.
MAX_PENDING_DELIVERIES = 500

Deliver = Callable[[Sequence[alerts.Alert], datetime], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class RuleLoopDependencies:
    pipeline: Callable[[], pipeline.Pipeline]
    deliver: Deliver
    may_evaluate: Callable[[], bool]
    report_failure: Callable[[str, Exception], None]


@dataclass(frozen=True, slots=True)
class DueEvaluation:
    """An evaluation of a group at its time; `is_late` if it was missed then."""

    group: rulefile.RuleGroup
    at: datetime
    is_late: bool = False


class RuleLoops:
    """Loads, evaluates and reloads rules; raises RuleFileProblems if the first load fails."""

    def __init__(
        self,
        settings: config.Settings,
        dependencies: RuleLoopDependencies,
        *,
        time: clock.Clock,
        metrics: own_metrics.Registry,
    ) -> None:
        self._settings, self._dependencies, self._clock = settings, dependencies, time
        self.follows_server = settings.rules.owner is config.RuleOwner.SERVER
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="rules")
        self._reloading = asyncio.Lock()
        self.is_evaluating = False
        self._tasks: set[asyncio.Task[None]] = set()
        self.server_alerts: Mapping[labels.Labels, alerts.Alert] = {}
        gauge = metrics.gauge
        self._duration = gauge("watchkeeper_hub_rule_group_seconds", "Duration of the last evaluation of a rule group")
        self._successful = gauge(
            "watchkeeper_rules_last_reload_successful", "1 if the last reload of the rule files succeeded, else 0"
        )
        self._succeeded_at = gauge(
            "watchkeeper_rules_last_reload_success_timestamp_seconds", "Time of the last successful reload"
        )
        self._missed = metrics.counter(
            "watchkeeper_rules_missed_evaluations_total",
            "Evaluations of a rule group that were skipped because the one before took too long",
        )
        self._caught_up = metrics.counter(
            "watchkeeper_rules_backfilled_evaluations_total",
            "Missed evaluations of recording rules that were run later, at their own time",
        )
        self._deliveries: set[asyncio.Task[None]] = set()
        # By group: its interval, and the number of the interval of its last evaluation.
        self._last_numbers: dict[str, tuple[float, int]] = {}
        self._file_stamps: Mapping[str, files.FileStamp | None] = {}
        self._loaded = reloads.LoadedRules() if self.follows_server else self._read_sources()
        self.last_reload = self._report_outcome(self._clock.now())

    @property
    def rules(self) -> rulefile.RuleSet:
        return self._loaded.rules

    @property
    def slos(self) -> tuple[slo.Slo, ...]:
        return self._loaded.slos

    def restore_server_alerts(self, stored: Iterable[alerts.Alert]) -> None:
        if self.follows_server:
            self.server_alerts = {alert.labels: alert for alert in stored}

    def loops(self) -> list[Loop]:
        if self.follows_server:
            follow = partial(self._follow_server, server_rules.open_client(self._settings))
            return [Loop("rule server", follow, self._settings.rules.interval_seconds)]
        return [
            Loop("rules", self._evaluate_next, 0.0),
            Loop("rule files", self._reload_if_changed, FILE_CHECK_SECONDS),
        ]

    def close(self) -> None:
        self._thread.shutdown()

    def groups(self) -> list[tuple[rulefile.RuleGroup, evaluate.RuleStates]]:
        return [(group, self._dependencies.pipeline().rule_state) for group in self.rules.groups]

    def alert_causes(self) -> Mapping[str, str]:
        """The cause label of the loaded alerting rules, by alert name."""
        rules = (rule for group in self.rules.groups for rule in group.rules)
        alerting = (rule for rule in rules if isinstance(rule, rulefile.AlertingRule))
        return {rule.name: rule.labels["cause"].text for rule in alerting if "cause" in rule.labels}

    # Evaluate

    async def _evaluate_next(self) -> None:
        try:
            await self._evaluate_due()
        except asyncio.CancelledError:
            # The hub stops or lost leadership: drop undelivered alerts.
            for task in self._deliveries:
                task.cancel()
            # A follower evaluates no rules, so it must not export durations.
            self._duration.values.clear()
            raise

    async def _evaluate_due(self) -> None:
        """Wait for the next full interval of any group, then evaluate all due groups.

        This includes groups that became due during the previous evaluation: on a busy hub they would never run else.
        """
        now = self._clock.now().timestamp()
        for group in self.rules.groups:
            self._start_group(group, now)
        intervals = map(self._interval, self.rules.groups)
        due = min(((now // interval + 1) * interval for interval in intervals), default=now + FILE_CHECK_SECONDS)
        await self._clock.sleep(min(due - now, FILE_CHECK_SECONDS))
        if due - now > FILE_CHECK_SECONDS:
            return
        if not self._dependencies.may_evaluate():
            # Another hub evaluated meanwhile, so nothing was missed.
            self._last_numbers.clear()
            return
        await self._evaluate([due for group in self.rules.groups for due in self._due_evaluations(group)])

    def _start_group(self, group: rulefile.RuleGroup, now: float) -> None:
        """Make a new group, or a group with a new interval, wait for the next full interval."""
        interval = self._interval(group)
        if self._last_numbers.get(group.key, (None, 0))[0] != interval:
            self._last_numbers[group.key] = (interval, self._interval_number(interval, now))

    def _interval_number(self, interval: float, now: float) -> int:
        return int((now + SAME_SECONDS) // interval)

    def _interval(self, group: rulefile.RuleGroup) -> float:
        return group.interval_seconds or self._settings.rules.interval_seconds

    def _due_evaluations(self, group: rulefile.RuleGroup) -> list[DueEvaluation]:
        """The evaluations of a group that are due: missed ones of recording rules, and the current one.

        Prometheus counts and skips missed evaluations. Here a missing minute is usage that is not billed, so the newest
        missed ones are evaluated for their own time. Groups with alerts skip them: an alert cannot fire in the past.
        """
        now = self._clock.now()
        self._start_group(group, now.timestamp())
        interval, last = self._last_numbers[group.key]
        current_number = self._interval_number(interval, now.timestamp())
        # Deliberately not `<=`: after the clock was set back, evaluation continues immediately.
        if current_number == last:
            return []
        self._last_numbers[group.key] = (interval, current_number)
        missed = range(last + 1, current_number)
        if missed:
            self._missed.add(len(missed), group=group.name)
        if any(isinstance(rule, rulefile.AlertingRule) for rule in group.rules):
            return [DueEvaluation(group, now)]
        numbers = (*missed[-MAX_CAUGHT_UP:], current_number)
        times = [datetime.fromtimestamp(number * interval, UTC) for number in numbers]
        return [DueEvaluation(group, at, is_late=at != times[-1]) for at in times]

    async def _evaluate(self, evaluations: Sequence[DueEvaluation]) -> None:
        """Run evaluations in order; changed alerts are delivered while the next ones run."""
        while len(self._deliveries) > MAX_PENDING_DELIVERIES:
            await asyncio.wait(self._deliveries, return_when=asyncio.FIRST_COMPLETED)
        is_cancelled, report = threading.Event(), asyncio.get_running_loop().call_soon_threadsafe
        try:
            await self._run_in_thread(lambda: self._run_evaluations(evaluations, is_cancelled, report))
        finally:
            is_cancelled.set()

    def _run_evaluations(
        self, evaluations: Sequence[DueEvaluation], is_cancelled: threading.Event, report: Callable[..., object]
    ) -> None:
        """Run evaluations on the rule thread; a failure is reported and does not stop the next group."""
        for due in evaluations:
            started = perf_counter()
            try:
                changed = self._dependencies.pipeline().evaluate(due.group, due.at)
            except Exception as error:  # Deliberately everything: one broken group must not stop the others.
                outcome = partial(self._dependencies.report_failure, f"rules {due.group.name}", error)
            else:
                outcome = partial(self._record_evaluation, due, changed, seconds=perf_counter() - started)
            if is_cancelled.is_set():
                return
            report(outcome)

    def _record_evaluation(self, due: DueEvaluation, changed: Sequence[alerts.Alert], *, seconds: float) -> None:
        self._duration.set(seconds, group=due.group.name)
        if due.is_late:
            self._caught_up.add(group=due.group.name)
        if changed:
            task = asyncio.create_task(self._deliver(due, changed))
            self._deliveries.add(task)
            task.add_done_callback(self._deliveries.discard)

    async def _deliver(self, due: DueEvaluation, changed: Sequence[alerts.Alert]) -> None:
        """Deliver changed alerts to the incidents; the journal thread keeps the order of evaluations."""
        try:
            await self._dependencies.deliver(changed, due.at)
        except Exception as error:  # Deliberately everything: no caller awaits this task.
            self._dependencies.report_failure(f"rules {due.group.name}", error)

    @property
    def pending_deliveries(self) -> int:
        return len(self._deliveries)

    async def _run_in_thread(self, work: Callable[[], T]) -> T:
        self.is_evaluating = True
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, work)
        finally:
            self.is_evaluating = False

    # Reload

    def reload_soon(self) -> None:
        """Reload in the background and log the result, for a signal handler."""
        task = asyncio.get_running_loop().create_task(self._reload_in_background())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _reload_in_background(self) -> None:
        try:
            await self.reload()
        except Exception as error:  # Deliberately everything: no caller awaits this task.
            self._dependencies.report_failure("rule reload", error)

    async def reload(self) -> reloads.Reload:
        """Reload all files; if any is invalid, keep the loaded rules and report every problem."""
        if self.follows_server:
            problem = 'the rules are on a server (`rules.owner = "server"`); the hub has no rules to reload'
            raise HubError(problem, status=409, remedy="Reload the rules on that server")
        async with self._reloading:
            try:
                loaded = await asyncio.to_thread(self._read_sources)
            # Deliberately everything: the loaded rules stay active after any failure.
            except Exception as error:
                listed = error.problems if isinstance(error, rulefile.RuleFileProblems) else (error,)
                problems = tuple(map(str, listed))
                self.last_reload = self._report_outcome(self._clock.now(), problems=problems)
                return self.last_reload
            now = self._clock.now()
            ended = await self._run_in_thread(lambda: self._dependencies.pipeline().change_rules(loaded.rules, now))
            self._loaded = loaded
            group_labels = {(("group", group.name),) for group in loaded.rules.groups}
            for key in [key for key in self._duration.values if key not in group_labels]:
                del self._duration.values[key]
            self.last_reload = outcome = self._report_outcome(now)
            if ended:
                await self._dependencies.deliver(ended, now)
            return outcome

    async def _reload_if_changed(self) -> None:
        """Reload if a file was changed, added or removed; an unchanged invalid file is not read again."""
        if await asyncio.to_thread(lambda: self._read_stamps() != self._file_stamps):
            await self.reload()

    def _read_sources(self) -> reloads.LoadedRules:
        # Before reading, so that a change during the read is noticed at the next check.
        self._file_stamps = self._read_stamps()
        return reloads.read_sources(rule_sources(self._settings))

    def _read_stamps(self) -> Mapping[str, files.FileStamp | None]:
        try:
            return reloads.file_stamps(rule_sources(self._settings))
        except (WatchkeeperError, OSError):
            return {}

    def _report_outcome(self, now: datetime, *, problems: tuple[str, ...] = ()) -> reloads.Reload:
        outcome = reloads.Reload(now, now, rules=len(self.rules.rules), groups=len(self.rules.groups))
        if problems:
            outcome = replace(self.last_reload, at=now, problems=problems)
        self._successful.set(float(outcome.is_successful))
        self._succeeded_at.set(outcome.in_force_since.timestamp())
        for problem in outcome.problems:
            log.error("rule file invalid", extra=fields(problem=problem))
        since = f"{outcome.in_force_since:%Y-%m-%dT%H:%M:%SZ}"
        if outcome.problems:
            log.error("rule reload failed, keeping the old rules", extra=fields(rules=outcome.rules, since=since))
        else:
            log.info("rules loaded", extra=fields(rules=outcome.rules, groups=outcome.groups))
        return outcome

    # Follow

    async def _follow_server(self, server: remote_http.ServerClient) -> None:
        """Follow the alerts of the server that owns the rules; if reading fails, they stay unchanged."""
        now = self._clock.now()
        reading = await asyncio.to_thread(server_rules.read_rules, server, now)
        for problem in [reading.unknown_reason] if reading.unknown_reason else reading.problems:
            log.warning("reading alerts of the rule server failed", extra=fields(problem=problem))
        followed = server_rules.compare_alerts(self.server_alerts, reading, now)
        self.server_alerts = followed.alerts
        if followed.changes:
            await self._dependencies.deliver(followed.changes, now)

    # The last method, because it hides the module `alerts` below it

    def alerts(self) -> list[alerts.Alert]:
        """Pending and firing alerts of the loaded rules, or of the server that owns the rules."""
        return [*self._dependencies.pipeline().active_alerts(), *self.server_alerts.values()]


def rule_sources(settings: config.Settings) -> reloads.RuleSources:
    """The configured or shipped rule files and SLOs, and the rule files that an existing prometheus.yml names."""
    rule_paths, slo_path = settings.rules.files, settings.rules.slos
    prometheus_yaml = settings.fleet.prometheus_config
    files = [Path(path) for path in rule_paths] or list(rulefile.list_files([SHIPPED_RULES]))
    if prometheus_yaml is not None:
        files += prometheus_config.rule_paths(Path(prometheus_yaml))
    if slo_path is not None:
        # Own SLOs replace the shipped ones.
        files = [path for path in files if path != SHIPPED_RULES / SHIPPED_SLOS.name]
        return reloads.RuleSources(tuple(files), Path(slo_path))
    return reloads.RuleSources(tuple(files), None if rule_paths else SHIPPED_SLOS, is_rendered=True)
