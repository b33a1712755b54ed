"""A pause of profiling: requested by a file, absent series while it lasts, and an automatic end."""

from __future__ import annotations

import asyncio
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.agent.conftest import MakeFake
from tests.agent.reading import sampling, shown
from tests.support.fake_nvml.driver import UUID
from tests.support.running_agent import machine as prepared
from tests.support.running_agent import running
from tests.support.waiting import until
from watchkeeper.agent.gpus.reader_watch import ReaderLimits
from watchkeeper.agent.profiling import Pause, PauseFile, PauseWatch
from watchkeeper.errors import CollectError
from watchkeeper.kit.own_metrics import Registry

NOON = datetime(2026, 5, 4, 12, 0, tzinfo=UTC)
HOUR = Pause(NOON, NOON + timedelta(hours=1), "ann")
PROFILED = "DCGM_FI_PROF_SM_ACTIVE"


def after(minutes: float) -> datetime:
    return NOON + timedelta(minutes=minutes)


class Watched:
    def __init__(self, root: Path) -> None:
        self.file = PauseFile(root)
        self.registry = Registry()
        self.watch = PauseWatch(self.file, self.registry)

    def number(self, name: str) -> float:
        return self.registry.metrics[f"watchkeeper_agent_profiling_{name}"].get()


@pytest.fixture
def node(tmp_path: Path) -> Watched:
    return Watched(tmp_path)


def test_a_pause_lasts_from_its_file_to_its_end(node: Watched, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    assert node.watch.update(NOON, 0.0) is None
    node.file.write(HOUR)
    assert node.watch.update(after(1), 60.0) == HOUR
    assert (node.number("paused"), node.number("paused_seconds")) == (1, 60)
    assert node.watch.update(after(59), 3540.0) == HOUR
    assert node.watch.update(after(60), 3600.0) is None
    assert (node.number("paused"), node.file.read()) == (0, None)
    assert node.watch.update(after(61), 3660.0) is None
    assert [record.message for record in caplog.records] == ["profiling paused", "profiling resumed"]
    assert caplog.records[1].fields["reason"] == "the pause of 1h is over"  # type: ignore[attr-defined]


def test_a_cleared_pause_ends_at_once(node: Watched, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    node.file.write(HOUR)
    node.watch.update(after(1), 60.0)
    assert node.file.clear()
    assert node.watch.update(after(2), 120.0) is None
    assert not node.file.clear()
    assert caplog.records[-1].fields["reason"] == "requested"  # type: ignore[attr-defined]


@pytest.mark.parametrize("jump_hours", [-48, 48])
def test_a_clock_that_jumps_makes_no_pause_longer(node: Watched, jump_hours: int) -> None:
    node.file.write(HOUR)
    assert node.watch.update(after(1), 60.0) == HOUR
    jumped = after(30) + timedelta(hours=jump_hours)
    assert node.watch.update(jumped, 1800.0) == HOUR
    assert node.watch.update(jumped + timedelta(minutes=31), 3660.0) is None


def test_a_pause_outlives_a_restart_of_the_agent_and_an_old_one_does_not(tmp_path: Path) -> None:
    PauseFile(tmp_path).write(HOUR)
    assert Watched(tmp_path).watch.update(after(30), 5.0) == HOUR
    assert Watched(tmp_path).watch.update(after(61), 5.0) is None


@pytest.mark.parametrize("content", ["", "{", "[]", '{"since": 5}', "x" * 10_000])
def test_an_invalid_pause_file_is_logged_once_and_ignored(
    node: Watched, caplog: pytest.LogCaptureFixture, content: str
) -> None:
    node.file.path.write_text(content)
    assert [node.watch.update(NOON, at) for at in (0.0, 1.0)] == [None, None]
    assert caplog.text.count("profiling pause unreadable") == 1


def test_a_pause_that_cannot_be_written_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CollectError, match="Run as root or as the agent's user"):
        PauseFile(tmp_path / "file").write(HOUR)


@pytest.mark.slow
def test_paused_series_are_absent_and_their_reader_process_has_exited(machine: MakeFake) -> None:
    with sampling(machine(1), ReaderLimits(interval_seconds=0.5)) as sampler:
        until(lambda: shown(sampler, PROFILED))
        first = sampler._reader
        sampler.pause_profiling(True)
        until(lambda: not shown(sampler, PROFILED) and sampler._reader is not first)
        until(lambda: shown(sampler).keys() == {UUID(0)})
        assert not shown(sampler, PROFILED), "other values are still sampled"
        sampler.pause_profiling(False)
        until(lambda: shown(sampler, PROFILED))


@pytest.mark.slow
def test_the_agent_pauses_profiling_for_a_file(tmp_path: Path, machine: MakeFake) -> None:
    async def story() -> None:
        async with running(prepared(tmp_path), machine(1)) as node:
            page = await node.until_page(lambda text: f"\n{PROFILED}{{" in text)
            assert "\nwatchkeeper_agent_profiling_paused 0\n" in page
            file, now = PauseFile(tmp_path / "spool"), datetime.now(UTC)
            file.write(Pause(now, now + timedelta(minutes=5), "ann"))
            await node.until_page(lambda text: "profiling_paused 1\n" in text and "FI_PROF_" not in text)
            page = await node.until_page(lambda text: "\nDCGM_FI_DEV_GPU_TEMP{" in text)
            assert "FI_PROF_" not in page
            assert re.search(r"profiling_paused_seconds [0-9.]+\n", page)
            file.clear()
            await node.until_page(lambda text: f"\n{PROFILED}{{" in text and "profiling_paused 0\n" in text)

    asyncio.run(story())
