"""A hub that is killed repeatedly: its alerts resolve, and none resolves because of missing evaluations."""

from __future__ import annotations

from tests.support.hub_stories import HOT, Line
from watchkeeper.model.alerts import AlertState
from watchkeeper.rules import evaluate

TEMPERATURE, REPLAYS = "DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_PCIE_REPLAY_COUNTER"
REPLAYING = HOT.replace("max by (cluster, Hostname) (DCGM_FI_DEV_GPU_TEMP) > 90", f"rate({REPLAYS}[30s]) > 0").replace(
    "for: 30s", "for: 0s"
)


KEEPING = HOT.replace("for: 30s", "for: 30s\n    keep_firing_for: 5m")


def live(line: Line, since: int, until: int, *, celsius: float | None) -> None:
    """A hub that reads, evaluates and writes its own series, every 15 s."""
    for at in range(since, until + 1, 15):
        if celsius is not None:
            line.read(TEMPERATURE, celsius, at)
        line.run_rules(at)
        line.read(evaluate.HEARTBEAT, 0.1, at)


def states(line: Line) -> list[AlertState]:
    return [alert.state for alert in line.journal.alerts()]


def test_a_hub_that_is_restarted_every_minute_resolves_its_alerts(line: Line) -> None:
    live(line, 0, 45, celsius=95.0)
    line.restart(60, keeps_samples=True)
    live(line, 75, 75, celsius=50.0)
    assert states(line) == [AlertState.FIRING]
    for start in (80, 140):
        line.restart(start, keeps_samples=True)
        live(line, start + 10, start + 40, celsius=50.0)
    assert AlertState.FIRING not in states(line)


def test_after_an_outage_the_resolve_delay_continues_through_restarts(line: Line) -> None:
    live(line, 0, 45, celsius=95.0)
    # Nothing is read: what is seen in the first minute after an outage is not health.
    for start, until in ((1000, 1030), (1035, 1065)):
        line.restart(start, keeps_samples=True)
        live(line, start + 15, until, celsius=None)
        assert states(line) == [AlertState.FIRING]
    line.restart(1070, keeps_samples=True)
    live(line, 1085, 1100, celsius=None)
    assert states(line) == [AlertState.FIRING]
    live(line, 1115, 1115, celsius=None)
    assert AlertState.FIRING not in states(line)


def test_an_alert_whose_rate_needs_two_samples_survives_a_short_pause(line: Line) -> None:
    line.restart(0, REPLAYING)
    for at in (0, 15, 30):
        line.read(REPLAYS, at, at)
        live(line, at, at, celsius=None)
    assert states(line) == [AlertState.FIRING]
    line.restart(75, REPLAYING, keeps_samples=True)
    for at in (80, 95, 110):
        line.read(REPLAYS, at, at)
        live(line, at, at, celsius=None)
        assert states(line) == [AlertState.FIRING]


def test_a_hub_without_earlier_samples_waits_for_the_full_delay(line: Line) -> None:
    live(line, 0, 45, celsius=95.0)
    line.restart(60)
    live(line, 75, 120, celsius=None)
    assert states(line) == [AlertState.FIRING]
    live(line, 135, 135, celsius=None)
    assert AlertState.FIRING not in states(line)


def test_keep_firing_for_ends_in_time_although_the_hub_is_restarted_every_minute(line: Line) -> None:
    line.restart(0, KEEPING)
    live(line, 0, 45, celsius=95.0)
    live(line, 60, 75, celsius=50.0)
    for start in range(90, 330, 60):
        line.restart(start, KEEPING, keeps_samples=True)
        live(line, start + 15, start + 45, celsius=50.0)
        assert states(line) == [AlertState.FIRING]
    # Five minutes after the 60th second, and four times the 30 s without evaluation.
    live(line, 330, 465, celsius=50.0)
    assert states(line) == [AlertState.FIRING]
    live(line, 480, 480, celsius=50.0)
    assert AlertState.FIRING not in states(line)


def test_an_alert_that_fired_again_before_a_restart_is_kept_firing_for_the_full_time(line: Line) -> None:
    line.restart(0, KEEPING)
    live(line, 0, 45, celsius=95.0)
    live(line, 60, 240, celsius=50.0)
    live(line, 255, 255, celsius=95.0)
    line.restart(260, KEEPING, keeps_samples=True)
    live(line, 270, 555, celsius=50.0)
    assert states(line) == [AlertState.FIRING]
    live(line, 570, 570, celsius=50.0)
    assert AlertState.FIRING not in states(line)
