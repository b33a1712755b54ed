"""The rules while the hub runs: which are in force, when each group is due, and how they are changed.

The hub makes one `RuleLoops` and runs its loops; the pipeline is asked for at each use, since another journal brings
another. Rules are evaluated and exchanged in one
thread, so a reload falls between two evaluations and never into one. All groups that are due have their turn in one go
of that thread: an event loop that answers a thousand questions comes round once a second, and whoever waited for it
after each group would be late by as many seconds as there are groups. Where a server owns the rules, its alerts are
followed instead and there is nothing to reload.
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
from watchkeeper.hub.loops import Loop
from watchkeeper.kit import clock, files, own_metrics
from watchkeeper.kit.logs import fields
from watchkeeper.model import alerts, labels
from watchkeeper.query.remote import http as remote_http
from watchkeeper.query.remote import rules as server_rules
from watchkeeper.rules import evaluate, rulefile, slo
from watchkeeper.rules import reload as reloads
from watchkeeper.scrape import prometheus_config

log = logging.getLogger(__name__)
T = TypeVar("T")

PACKS = Path(__file__).parents[1] / "packs"
SHIPPED_RULES = PACKS / "rules"
SHIPPED_SLOS = PACKS / "slo.yaml"
# How often rule files are looked at for a change, and how soon a new group begins at the latest.
LOOK_SECONDS = 30.0
# Multiples of two intervals that mean the same moment may differ in their last bit.
SAME_SECONDS = 0.001
# Turns of a group that a busy hub makes up for at once; older ones stay lost, and are counted.
MOST_CAUGHT_UP = 15
# Changed alerts of so many evaluations may wait for the journal; then rules wait for it too.
MOST_UNHEARD = 500

Deliver = Callable[[Sequence[alerts.Alert], datetime], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class RuleLoopDependencies:
    """What the loops need: the stages, where changed alerts go, whether all was read, and who hears of failures."""

    pipeline: Callable[[], pipeline.Pipeline]
    deliver: Deliver
    may_evaluate: Callable[[], bool]
    report_failure: Callable[[str, Exception], None]


@dataclass(frozen=True, slots=True)
class DueEvaluation:
    """One evaluation of a group: at its time, or afterwards at the time that was missed."""

    group: rulefile.RuleGroup
    at: datetime
    is_late: bool = False


class RuleLoops:
    """One set of rules in force at a time. RuleFileProblems if the first one cannot be read."""

    def __init__(
        self,
        settings: config.Settings,
        around: RuleLoopDependencies,
        *,
        time: clock.Clock,
        metrics: own_metrics.Registry,
    ) -> None:
        self._settings, self._around, self._clock = settings, around, time
        self.follows_server = settings.rules.owner is config.RuleOwner.SERVER
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="rules")
        self._reloading = asyncio.Lock()
        self.is_evaluating = False
        self._tasks: set[asyncio.Task[None]] = set()
        self.server_alerts: Mapping[labels.Labels, alerts.Alert] = {}
        gauge = metrics.gauge
        self._duration = gauge("watchkeeper_hub_rule_group_seconds", "Duration of the last evaluation of a rule group")
        self._successful = gauge(
            "watchkeeper_rules_last_reload_successful", "1 if the rule files could be read, else 0"
        )
        self._succeeded_at = gauge(
            "watchkeeper_rules_last_reload_success_timestamp_seconds", "When the rules in force were read"
        )
        self._missed = metrics.counter(
            "watchkeeper_rules_missed_evaluations_total",
            "Evaluations of a rule group that were skipped because the one before took too long",
        )
        self._caught_up = metrics.counter(
            "watchkeeper_rules_backfilled_evaluations_total",
            "Missed evaluations of recording rules that were run later, at their own time",
        )
        self._handing_over: set[asyncio.Task[None]] = set()
        # The interval and the number of each group's last turn.
        self._turns: dict[str, tuple[float, int]] = {}
        self._seen: Mapping[str, files.FileStamp | None] = {}
        self.book = reloads.LoadedRules() if self.follows_server else self._read()
        self.last_reload = self._say(self._outcome(self._clock.now()))

    @property
    def rules(self) -> rulefile.RuleSet:
        return self.book.rules

    @property
    def slos(self) -> tuple[slo.Slo, ...]:
        return self.book.slos

    def restore_server_alerts(self, kept: Iterable[alerts.Alert]) -> None:
        """Go on with another journal: alerts of a server are those that it has."""
        if self.follows_server:
            self.server_alerts = {alert.labels: alert for alert in kept}

    def loops(self) -> list[Loop]:
        if self.follows_server:
            follow = partial(self._follow_server, server_rules.client_of(self._settings))
            return [Loop("rule server", follow, self._settings.rules.interval_seconds)]
        return [Loop("rules", self._evaluate_next, 0.0), Loop("rule files", self._look, LOOK_SECONDS)]

    def close(self) -> None:
        self._thread.shutdown()

    def groups(self) -> list[tuple[rulefile.RuleGroup, evaluate.RuleStates]]:
        return [(group, self._around.pipeline().rule_state) for group in self.rules.groups]

    def alert_causes(self) -> Mapping[str, str]:
        """The cause that each of our alert rules names, by the alert's name."""
        rules = (rule for group in self.rules.groups for rule in group.rules)
        own = (rule for rule in rules if isinstance(rule, rulefile.AlertingRule) and "cause" in rule.labels)
        return {rule.name: rule.labels["cause"].text for rule in own}

    # Evaluate

    async def _evaluate_next(self) -> None:
        try:
            await self._evaluate_due()
        except asyncio.CancelledError:
            # The hub stops, or another one leads from now on: nobody is to hear of it from here.
            for task in self._handing_over:
                task.cancel()
            # A hub that only follows does not look after rules, and its series must not say so.
            self._duration.values.clear()
            raise

    async def _evaluate_due(self) -> None:
        """Wait for the next full interval of any group, and evaluate all whose turn has come since they had one.

        Not only those whose interval ends now: what fell due while others were evaluated would wait for a moment at
        which the thread is free by chance, and a busy hub would keep its minutes and hours waiting for ever.
        """
        now = self._clock.now().timestamp()
        for group in self.rules.groups:
            self._begin(group, now)
        due = min((self._next_turn(group, now) for group in self.rules.groups), default=now + LOOK_SECONDS)
        await self._clock.sleep(min(due - now, LOOK_SECONDS))
        if due - now > LOOK_SECONDS:
            return
        if not self._around.may_evaluate():
            # Whoever leads meanwhile has evaluated; nothing of it was missed.
            self._turns.clear()
            return
        await self._evaluate([turn for group in self.rules.groups for turn in self._turns_of(group)])

    def _begin(self, group: rulefile.RuleGroup, now: float) -> None:
        """A group that is new, or has a new interval, waits for the next full one."""
        interval = self._interval(group)
        if self._turns.get(group.key, (None, 0))[0] != interval:
            self._turns[group.key] = (interval, self._turn(interval, now))

    def _next_turn(self, group: rulefile.RuleGroup, now: float) -> float:
        interval = self._interval(group)
        return (now // interval + 1) * interval

    def _turn(self, interval: float, now: float) -> int:
        return int((now + SAME_SECONDS) // interval)

    def _interval(self, group: rulefile.RuleGroup) -> float:
        return group.interval_seconds or self._settings.rules.interval_seconds

    def _turns_of(self, group: rulefile.RuleGroup) -> list[DueEvaluation]:
        """What a group is asked for: nothing before it is due, the missed turns of recording rules, and this one.

        Prometheus counts them and goes on. Here a minute that is not recorded is a minute of usage that nobody pays
        for, so the newest are asked for, each at its own time. An alert cannot fire in the past: groups with one are
        asked about now.
        """
        now = self._clock.now()
        self._begin(group, now.timestamp())
        interval, last = self._turns[group.key]
        this = self._turn(interval, now.timestamp())
        # Not `<=`: after a clock was put back, rules go on at once.
        if this == last:
            return []
        self._turns[group.key] = (interval, this)
        missed = range(last + 1, this)
        if missed:
            self._missed.add(len(missed), group=group.name)
        if any(isinstance(rule, rulefile.AlertingRule) for rule in group.rules):
            return [DueEvaluation(group, now)]
        times = [datetime.fromtimestamp(turn * interval, UTC) for turn in (*missed[-MOST_CAUGHT_UP:], this)]
        return [DueEvaluation(group, at, is_late=at != times[-1]) for at in times]

    async def _evaluate(self, turns: Sequence[DueEvaluation]) -> None:
        """These turns, one after the other; what changed is handed over while the next ones are evaluated."""
        while len(self._handing_over) > MOST_UNHEARD:
            await asyncio.wait(self._handing_over, return_when=asyncio.FIRST_COMPLETED)
        is_over, tell = threading.Event(), asyncio.get_running_loop().call_soon_threadsafe
        try:
            await self._in_thread(lambda: self._have_turns(turns, is_over, tell))
        finally:
            is_over.set()

    def _have_turns(
        self, turns: Sequence[DueEvaluation], is_over: threading.Event, tell: Callable[..., object]
    ) -> None:
        """The thread's part; a group's failure is said and the next one has its turn."""
        for turn in turns:
            began = perf_counter()
            try:
                changed = self._around.pipeline().evaluate(turn.group, turn.at)
            except Exception as error:  # Deliberately everything: one broken group must not blind the others.
                outcome = partial(self._around.report_failure, f"rules {turn.group.name}", error)
            else:
                outcome = partial(self._had_turn, turn, changed, seconds=perf_counter() - began)
            if is_over.is_set():
                return
            tell(outcome)

    def _had_turn(self, turn: DueEvaluation, changed: Sequence[alerts.Alert], *, seconds: float) -> None:
        self._duration.set(seconds, group=turn.group.name)
        if turn.is_late:
            self._caught_up.add(group=turn.group.name)
        if changed:
            task = asyncio.create_task(self._hand_over(turn, changed))
            self._handing_over.add(task)
            task.add_done_callback(self._handing_over.discard)

    async def _hand_over(self, turn: DueEvaluation, changed: Sequence[alerts.Alert]) -> None:
        """To the incidents, in the order of the evaluations: each asks the one thread that they belong to."""
        try:
            await self._around.deliver(changed, turn.at)
        except Exception as error:  # Deliberately everything: nobody waits for this task.
            self._around.report_failure(f"rules {turn.group.name}", error)

    @property
    def pending_deliveries(self) -> int:
        """Evaluations whose changed alerts are on their way to the incidents."""
        return len(self._handing_over)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        self.is_evaluating = True
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, work)
        finally:
            self.is_evaluating = False

    # Reload

    def reload_soon(self) -> None:
        """For a signal: it cannot wait for the answer, which stands in the log."""
        task = asyncio.get_running_loop().create_task(self._reload_unasked())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _reload_unasked(self) -> None:
        try:
            await self.reload()
        except Exception as error:  # Deliberately everything: nobody waits for this task.
            self._around.report_failure("rule reload", error)

    async def reload(self) -> reloads.Reload:
        """Read all files and put them in force, or keep what is in force and say every problem."""
        if self.follows_server:
            problem = 'the rules belong to a server (`owner = "server"`), so there is nothing to reload here'
            raise HubError(problem, status=409, remedy="Reload the rules of that server")
        async with self._reloading:
            try:
                book = await asyncio.to_thread(self._read)
            # Deliberately everything: whatever is wrong with the files, the rules in force go on.
            except Exception as error:
                self.last_reload = self._say(self._outcome(self._clock.now(), problems=_problems(error)))
                return self.last_reload
            now = self._clock.now()
            ended = await self._in_thread(lambda: self._around.pipeline().change_rules(book.rules, now))
            self.book = book
            for name in [key for key in self._duration.values if key not in _known(book.rules)]:
                del self._duration.values[name]
            self.last_reload = outcome = self._say(self._outcome(now))
            if ended:
                await self._around.deliver(ended, now)
            return outcome

    async def _look(self) -> None:
        """Reload when a file was written, came or went; a file that stays broken is not read again."""
        if await asyncio.to_thread(lambda: self._stamp() != self._seen):
            await self.reload()

    def _read(self) -> reloads.LoadedRules:
        # Before reading: what is written meanwhile is seen at the next look.
        self._seen = self._stamp()
        return reloads.read_sources(rule_sources(self._settings))

    def _stamp(self) -> Mapping[str, files.FileStamp | None]:
        try:
            return reloads.file_stamps(rule_sources(self._settings))
        except (WatchkeeperError, OSError):
            return {}

    def _outcome(self, now: datetime, *, problems: tuple[str, ...] = ()) -> reloads.Reload:
        rules = self.rules
        if problems:
            return replace(self.last_reload, at=now, problems=problems)
        return reloads.Reload(now, now, rules=len(rules.rules), groups=len(rules.groups))

    def _say(self, outcome: reloads.Reload) -> reloads.Reload:
        self._successful.set(float(outcome.is_successful))
        self._succeeded_at.set(outcome.in_force_since.timestamp())
        for problem in outcome.problems:
            log.error("A rule file cannot be used", extra=fields(problem=problem))
        since = f"{outcome.in_force_since:%Y-%m-%dT%H:%M:%SZ}"
        if outcome.problems:
            log.error("The last good rules stay in force", extra=fields(rules=outcome.rules, since=since))
        else:
            log.info("Rules are in force", extra=fields(rules=outcome.rules, groups=outcome.groups))
        return outcome

    # Follow

    async def _follow_server(self, server: remote_http.ServerClient) -> None:
        """Take over what a server that owns the rules says about its alerts; what it does not say stays as it was."""
        now = self._clock.now()
        reading = await asyncio.to_thread(server_rules.read_rules, server, now)
        for trouble in [reading.unknown_reason] if reading.unknown_reason else reading.problems:
            log.warning("Alerts of the rule server are unknown", extra=fields(why=trouble))
        followed = server_rules.compare_alerts(self.server_alerts, reading, now)
        self.server_alerts = followed.alerts
        if followed.changes:
            await self._around.deliver(followed.changes, now)

    # The last of all: below it `alerts` would not be the module

    def alerts(self) -> list[alerts.Alert]:
        """Pending and firing ones of our own rules, and those of a server that owns the rules."""
        return [*self._around.pipeline().active_alerts(), *self.server_alerts.values()]


def _problems(error: Exception) -> tuple[str, ...]:
    if isinstance(error, rulefile.RuleFileProblems):
        return tuple(str(problem) for problem in error.problems)
    return (str(error),)


def _known(rules: rulefile.RuleSet) -> set[own_metrics.LabelPairs]:
    return {(("group", group.name),) for group in rules.groups}


def rule_sources(settings: config.Settings) -> reloads.RuleSources:
    """The configured or shipped rule files and objectives, and the rule files that an existing prometheus.yml names."""
    own, objectives, existing = settings.rules.files, settings.rules.slos, settings.fleet.prometheus_config
    files = [Path(path) for path in own] or list(rulefile.files([SHIPPED_RULES]))
    if existing is not None:
        files += prometheus_config.rule_paths(Path(existing))
    if objectives is not None:
        # Whoever has objectives of their own does not want those of the examples.
        files = [path for path in files if path != SHIPPED_RULES / SHIPPED_SLOS.name]
        return reloads.RuleSources(tuple(files), Path(objectives))
    return reloads.RuleSources(tuple(files), None if own else SHIPPED_SLOS, is_rendered=True)
