"""Rules change while the hub runs: unchanged ones continue, removed ones end, invalid files change nothing."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import threading
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import NoReturn

import pytest

from tests.support.hub_stories import HOT, NOON, Line, later
from tests.support.manual_clock import ManualClock
from watchkeeper.config import settings
from watchkeeper.errors import HubError
from watchkeeper.hub import rule_loops
from watchkeeper.hub.runtime import Loop
from watchkeeper.kit import own_metrics
from watchkeeper.model import alerts
from watchkeeper.query.engine import QueryResult
from watchkeeper.rules import evaluate, rulefile

COLD = HOT.replace("Hot", "Cold").replace("name: heat", "name: cold").replace("> 90", "< 10")
OBJECTIVE = """
slos:
  - {name: chat, title: answers, objective: 0.99, window: 28d, by: [cluster], cause: inference_overload,
     action: Look, errors: 'rate(bad[window])', total: 'rate(all[window])'}
"""


class Running:
    """Rule loops over a real pipeline, on a clock that a story moves; `said` are the alerts that were handed over."""

    def __init__(self, folder: Path, text: str = HOT, **chosen: object) -> None:
        self.file = folder / "rules.yaml"
        self.file.write_text(text)
        rules = settings.RulesSettings(files=(str(self.file),), **chosen)  # type: ignore[arg-type]
        self.line, self.clock, self.metrics = Line(folder), ManualClock(NOON), own_metrics.Registry()
        self.delivered: list[tuple[str, str]] = []
        self.failed: list[str] = []
        self.loops = rule_loops.RuleLoops(
            settings.Settings(rules=rules),
            rule_loops.RuleLoopDependencies(
                lambda: self.line.pipeline, self.hear, lambda: True, lambda name, _: self.failed.append(name)
            ),
            time=self.clock,
            metrics=self.metrics,
        )
        self.line.pipeline.change_rules(self.loops.rules, NOON)

    async def hear(self, changed: Sequence[alerts.Alert], now: datetime) -> None:
        self.delivered += [(alert.name, alert.state.value) for alert in changed]
        self.line.pipeline.ingest_alerts(changed, now)

    def write(self, text: str, *, second: int) -> None:
        self.file.write_text(text)
        os.utime(self.file, (second, second))

    async def run_for(self, seconds: int, *, celsius: float = 95.0) -> None:
        """Each loop has its turns; evaluations run in a thread that knows nothing of this clock."""
        began = (self.clock.now() - NOON).total_seconds()
        for passed in range(0, seconds, 15):
            self.line.read("DCGM_FI_DEV_GPU_TEMP", celsius, began + passed + 1)
            for loop in self.loops.loops():
                turn = asyncio.ensure_future(loop.body())
                while not turn.done():
                    await self.clock.advance(0)
                    await asyncio.sleep(0.001)
                    if loop.name == "rules":
                        await self.clock.advance(max(0.0, began + passed + 15 - self._seconds()))
                await turn
                while self.loops.pending_deliveries:
                    await asyncio.sleep(0)

    def _seconds(self) -> float:
        return (self.clock.now() - NOON).total_seconds()

    def close(self) -> None:
        self.loops.close()
        self.line.journal.close()

    def states(self) -> list[tuple[str, str, float]]:
        return [
            (alert.name, alert.state.value, (alert.active_at - NOON).total_seconds())
            for alert in self.line.pipeline.active_alerts()
        ]


def test_pending_and_firing_alerts_survive_a_reload(tmp_path: Path) -> None:
    async def story() -> None:
        running = Running(tmp_path)
        await running.run_for(30)
        assert running.states() == [("Hot", "pending", 15.0)]
        running.write(HOT + COLD.split("groups:\n")[1], second=1)
        await running.loops.reload()
        assert running.states() == [("Hot", "pending", 15.0)]
        await running.run_for(30)
        assert running.states() == [("Hot", "firing", 15.0)]
        assert running.delivered == [("Hot", "firing")]
        running.close()

    asyncio.run(story())


def test_the_alerts_and_series_of_a_removed_rule_end(tmp_path: Path) -> None:
    async def story() -> None:
        running = Running(tmp_path)
        await running.run_for(60)
        running.write(COLD, second=1)
        outcome = await running.loops.reload()
        assert (outcome.is_successful, outcome.rules) == (True, 1)
        assert running.delivered == [("Hot", "firing"), ("Hot", "resolved")]
        assert running.states() == []
        result = running.line.engine.instant("ALERTS", round(later(61).timestamp() * 1000))
        assert result.frame.labels == []
        running.close()

    asyncio.run(story())


def test_an_invalid_file_reports_every_problem_and_the_loaded_rules_stay(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        running = Running(tmp_path)
        await running.run_for(15)
        running.write(HOT.replace("> 90", ">").replace("30s", "soon"), second=1)
        outcome = await running.loops.reload()
        assert [problem.split(": ")[0] for problem in outcome.problems] == [f"{running.file}:7", f"{running.file}:8"]
        assert (outcome.rules, outcome.in_force_since) == (1, NOON)
        assert running.metrics.gauge("watchkeeper_rules_last_reload_successful", "").get() == 0
        await running.run_for(45)
        assert running.delivered == [("Hot", "firing")]
        running.close()

    asyncio.run(story())
    assert "rule reload failed, keeping the old rules" in caplog.text


def test_a_changed_file_is_read_at_the_next_check_and_an_invalid_one_only_once(tmp_path: Path) -> None:
    async def story() -> None:
        running = Running(tmp_path)
        running.write("groups: 7", second=1)
        await running.run_for(15)
        broken = running.loops.last_reload
        assert not broken.is_successful
        await running.run_for(15)
        assert running.loops.last_reload is broken
        running.write(COLD, second=2)
        await running.run_for(15)
        assert [rule.name for rule in running.loops.rules.rules] == ["Cold"]
        assert running.metrics.gauge("watchkeeper_rules_last_reload_successful", "").get() == 1
        running.close()

    asyncio.run(story())


def test_a_group_replaced_between_two_evaluations_is_not_evaluated_any_more(tmp_path: Path) -> None:
    running = Running(tmp_path)
    old = running.loops.rules.groups[0]
    running.line.read("DCGM_FI_DEV_GPU_TEMP", 95, 1)
    running.line.pipeline.change_rules(rulefile.read_rules({"r.yaml": COLD}), later(10))
    assert running.line.pipeline.evaluate(old, later(15)) == []
    assert running.line.pipeline.rule_state == {}
    running.close()


def test_a_hub_that_lost_leadership_exports_no_rule_durations(tmp_path: Path) -> None:
    async def story() -> None:
        running = Running(tmp_path)
        await running.run_for(15)
        looked_after = running.metrics.gauge(evaluate.HEARTBEAT, "")
        assert looked_after.values
        waits = asyncio.ensure_future(running.loops.loops()[0].body())
        await asyncio.sleep(0)
        waits.cancel()
        await asyncio.wait([waits])
        assert (waits.cancelled(), looked_after.values) == (True, {})
        running.close()

    asyncio.run(story())


def test_own_slos_become_rules_and_are_reloaded_with_them(tmp_path: Path) -> None:
    async def story() -> None:
        goals = tmp_path / "slo.yaml"
        goals.write_text(OBJECTIVE)
        running = Running(tmp_path, slos=str(goals))
        assert [objective.name for objective in running.loops.slos] == ["chat"]
        assert len(running.loops.rules.rules) == 1 + 12
        goals.write_text(OBJECTIVE.replace("0.99", "99"))
        outcome = await running.loops.reload()
        assert outcome.problems[0].startswith(f"{goals}:3: slos[0]")
        assert [objective.objective for objective in running.loops.slos] == [0.99]
        running.close()

    asyncio.run(story())


def unused(chosen: settings.Settings) -> rule_loops.RuleLoops:
    """Rule loops that nothing comes of: no pipeline is there."""

    def missing(*_: object) -> NoReturn:
        raise AssertionError("nothing is evaluated")

    dependencies = rule_loops.RuleLoopDependencies(missing, missing, lambda: False, missing)
    return rule_loops.RuleLoops(chosen, dependencies, time=ManualClock(NOON), metrics=own_metrics.Registry())


def test_a_reload_is_refused_if_a_server_owns_the_rules() -> None:
    rules = settings.RulesSettings(owner=settings.RuleOwner.SERVER, server_url="http://127.0.0.1:1")
    chosen = dataclasses.replace(settings.Settings(), rules=rules)
    loops = unused(chosen)
    with pytest.raises(HubError, match="are on a server") as refused:
        asyncio.run(loops.reload())
    assert refused.value.status == 409
    loops.close()


def test_the_shipped_rules_and_slos_are_used_by_default() -> None:
    loops = unused(settings.Settings())
    names = {"availability", "errors", "first-token", "token-time", "latency"}
    assert {f"inference-{name}" for name in names} == {objective.name for objective in loops.slos}
    assert loops.last_reload.rules > 100
    loops.close()


MINUTES = """
groups:
  - {name: minutes, interval: 1m, rules: [{record: 'gpu:celsius', expr: 'max by (cluster) (DCGM_FI_DEV_GPU_TEMP)'}]}
"""
WITH_ALERT = MINUTES.replace("}]}", "}, {alert: Hot, expr: 'DCGM_FI_DEV_GPU_TEMP > 90'}]}")


async def busy_for(running: Running, minutes: int) -> None:
    """The engine takes so long about the turn of the first minute; then comes the next one."""
    for at in range(0, 60 * (minutes + 3), 15):
        running.line.read("DCGM_FI_DEV_GPU_TEMP", 50.0 + at // 60, at + 1)
    engine, was_queried, gate = running.line.engine, threading.Event(), threading.Event()
    at_once = engine.instant

    def slowly(expr: str, at_ms: int) -> QueryResult:
        was_queried.set()
        gate.wait(60)
        return at_once(expr, at_ms)

    engine.instant = slowly  # type: ignore[method-assign]
    task = asyncio.ensure_future(for_ever(running.loops.loops()[0]))
    await until(running, 60, was_queried.is_set)
    await running.clock.advance(60.0 * minutes)
    gate.set()
    await until(running, 60, lambda: later(60) in evaluated(running))
    last = 60 * (minutes + 2)
    await until(running, last, lambda: later(last) in evaluated(running))
    task.cancel()


async def for_ever(loop: Loop) -> None:
    while True:
        await loop.body()


async def until(running: Running, at: float, condition: Callable[[], bool]) -> None:
    """Let the clock come to this second, and wait for what is so then: evaluations have a thread of their own."""
    while not condition():
        await running.clock.advance(min(15.0, max(0.0, at - running._seconds())))
        await asyncio.sleep(0.001)


def evaluated(running: Running) -> set[datetime | None]:
    return {state.evaluated_at for state in running.line.pipeline.rule_state.values()}


def has_evaluated(running: Running, second: int) -> bool:
    """Whether the turn of this second is over and the loop waits for the next: until then the clock must not move."""
    return later(second) in evaluated(running) and not running.loops.is_evaluating


def recorded(running: Running, minutes: int) -> list[float]:
    """The seconds after noon at which the series has a sample."""
    result = running.line.engine.instant(
        f"timestamp(gpu:celsius)[{minutes}m:1s]", round(later(60 * minutes).timestamp() * 1000)
    )
    return sorted({value - NOON.timestamp() for _, _, values in result.frame.rows() for value in values})


def counted(running: Running, name: str) -> float:
    return sum(running.metrics.counter(name, "").values.values())


@pytest.mark.parametrize(("minutes", "lost"), [(4, 0), (30, 15)])
def test_evaluations_that_a_busy_hub_missed_are_recorded_at_their_own_time(
    tmp_path: Path, minutes: int, lost: int
) -> None:
    async def story() -> None:
        running = Running(tmp_path, MINUTES)
        await busy_for(running, minutes)
        expected = [60.0, *(60.0 * at for at in range(2 + lost, minutes + 3))]
        assert recorded(running, minutes + 3) == expected
        assert counted(running, "watchkeeper_rules_missed_evaluations_total") == minutes
        assert counted(running, "watchkeeper_rules_backfilled_evaluations_total") == minutes - lost
        running.close()

    asyncio.run(story())


def test_a_group_that_becomes_due_during_an_evaluation_is_evaluated_next(tmp_path: Path) -> None:
    async def story() -> None:
        running = Running(tmp_path, HOT + MINUTES.split("groups:\n")[1].lstrip())
        running.line.read("DCGM_FI_DEV_GPU_TEMP", 50.0, 1)
        engine, was_queried, gate = running.line.engine, threading.Event(), threading.Event()
        at_once = engine.instant

        def slowly(expr: str, at_ms: int) -> QueryResult:
            if at_ms == round(later(45).timestamp() * 1000):
                was_queried.set()
                gate.wait(60)
            return at_once(expr, at_ms)

        engine.instant = slowly  # type: ignore[method-assign]
        task = asyncio.ensure_future(for_ever(running.loops.loops()[0]))
        await until(running, 30, lambda: has_evaluated(running, 30))
        await until(running, 45, was_queried.is_set)
        await running.clock.advance(25)
        gate.set()
        await until(running, 70, lambda: has_evaluated(running, 45))
        await until(running, 90, lambda: recorded(running, 2) == [60.0])
        task.cancel()
        running.close()

    asyncio.run(story())


def test_a_group_with_an_alert_counts_and_skips_missed_evaluations(tmp_path: Path) -> None:
    async def story() -> None:
        running = Running(tmp_path, WITH_ALERT)
        await busy_for(running, 4)
        assert recorded(running, 7) == [60.0, 360.0]
        assert counted(running, "watchkeeper_rules_missed_evaluations_total") == 4
        assert counted(running, "watchkeeper_rules_backfilled_evaluations_total") == 0
        running.close()

    asyncio.run(story())


MANY = "groups:\n" + "".join(
    f"  - {{name: g{at}, rules: [{{alert: A{at}, expr: 'DCGM_FI_DEV_GPU_TEMP > {90 - at}'}}]}}\n" for at in range(9)
)


def test_due_groups_do_not_wait_for_a_busy_event_loop(tmp_path: Path) -> None:
    async def story() -> None:
        running, all_asked, waited = Running(tmp_path, MANY), threading.Event(), list[bool]()
        loop, engine = asyncio.get_running_loop(), running.line.engine
        at_once = engine.instant

        def instant(expr: str, at_ms: int) -> QueryResult:
            if "> 90" in expr:
                loop.call_soon_threadsafe(lambda: waited.append(all_asked.wait(30)))
            if "> 82" in expr:
                all_asked.set()
            return at_once(expr, at_ms)

        engine.instant = instant  # type: ignore[method-assign]
        await running.run_for(15)
        assert waited == [True]
        assert sorted(running.delivered) == [(f"A{at}", "firing") for at in range(9)]
        running.close()

    asyncio.run(story())


def test_a_slow_journal_does_not_delay_the_next_evaluation(tmp_path: Path) -> None:
    async def story() -> None:
        running, gate = Running(tmp_path, WITH_ALERT.replace("> 90", "> 1")), asyncio.Event()

        async def hear_slowly(changed: Sequence[alerts.Alert], now: datetime) -> None:
            await gate.wait()
            await running.hear(changed, now)

        running.loops._dependencies = dataclasses.replace(running.loops._dependencies, deliver=hear_slowly)
        running.line.read("DCGM_FI_DEV_GPU_TEMP", 50.0, 1)
        task = asyncio.ensure_future(for_ever(running.loops.loops()[0]))
        for second in (60, 120, 180):
            await until(running, second, partial(has_evaluated, running, second))
        assert (running.delivered, running.loops.pending_deliveries) == ([], 1)
        gate.set()
        await until(running, 180, lambda: running.delivered == [("Hot", "firing")])
        assert counted(running, "watchkeeper_rules_missed_evaluations_total") == 0
        task.cancel()
        running.close()

    asyncio.run(story())
