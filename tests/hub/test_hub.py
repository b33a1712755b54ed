"""The hub's own promises: a diagnosis that fails is tried again, and said to be missing when it keeps failing."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from tests.hub.stories import HOT, NOON, gpu, xid
from tests.incidents.test_services import Web, running
from watchkeeper.config import settings
from watchkeeper.hub.diagnosis_queue import DIAGNOSIS_TRIES
from watchkeeper.hub.hub import Hub
from watchkeeper.kit.clock import ManualClock, ScaledClock, to_ms
from watchkeeper.model.actions import Action
from watchkeeper.model.fleet import Gpu, Node, NodeRegistration
from watchkeeper.remediate.drivers import dry_run


class Stubborn(dry_run.DryRun):
    """A cluster that breaks the first times it is asked."""

    def __init__(self, failures: int) -> None:
        self.failures = failures

    def describe(self, action: Action) -> str:
        self.failures -= 1
        if self.failures >= 0:
            raise ConnectionResetError("gone away")
        return super().describe(action)


def diagnose_with(folder: Path, driver: Stubborn) -> list[str]:
    """What the timeline of one incident says whose diagnosis meets this cluster."""

    async def story() -> list[str]:
        time = ManualClock(NOON)
        hub = Hub(settings.Settings(hub=settings.Hub(data=str(folder / "kept"))), time=time)
        hub.build()
        hub.driver = driver
        hub.open()
        loop = asyncio.create_task(hub._repeat("diagnosis", hub._undiagnosed.work, 0.0))
        await hub.take_events([xid(79, gpu(0), 0)])
        while not any(entry.kind in ("plan", "noted") for entry in hub.timeline("INC-1")):
            await time.advance(1)
            # The diagnosis runs in a thread of its own, which knows nothing of this clock.
            await asyncio.sleep(0.01)
        told = [entry.text for entry in hub.timeline("INC-1")]
        loop.cancel()
        await asyncio.gather(loop, return_exceptions=True)
        hub.close()
        return told

    return asyncio.run(story())


def test_a_diagnosis_that_fails_once_is_made_again(tmp_path: Path) -> None:
    told = diagnose_with(tmp_path, Stubborn(failures=1))
    assert told[1] == "GPU-0 on n1 fell off the bus"


def test_a_diagnosis_that_keeps_failing_is_said_to_be_missing(tmp_path: Path) -> None:
    told = diagnose_with(tmp_path, Stubborn(failures=DIAGNOSIS_TRIES))
    assert told[1:] == ["No diagnosis: it failed 3 times, the last time with ConnectionResetError: gone away"]


def test_a_gpu_that_breaks_before_its_first_page_is_called_as_its_node_has_registered_it(tmp_path: Path) -> None:
    async def story() -> None:
        hub = Hub(settings.Settings(hub=settings.Hub(data=str(tmp_path / "kept"))), time=ManualClock(NOON))
        hub.open()
        hub.register_node(NodeRegistration("sim", "n1", gpus=(Gpu("GPU-3", index=3), Gpu("GPU-4"))), "127.0.0.1")
        await hub.take_events([xid(79, gpu(3), 0), xid(79, gpu(4), 0)])
        told = [incident.title for incident in hub.journal.incidents(open_only=True, limit=9)]
        assert sorted(told) == ["GPU 3 on n1 fell off the bus", "GPU-4 on n1 fell off the bus"]
        hub.close()

    asyncio.run(story())


def test_a_hub_reloads_its_rules_and_shows_those_in_force(tmp_path: Path) -> None:
    async def story() -> None:
        file = tmp_path / "rules.yaml"
        file.write_text(HOT)
        chosen = settings.Settings(
            hub=settings.Hub(data=str(tmp_path / "kept")), rules=settings.Rules(files=(str(file),))
        )
        hub = Hub(chosen, time=ManualClock(NOON))
        hub.open()
        file.write_text(HOT.replace("name: heat", "name: warmth"))
        assert (await hub.reload_rules()).is_successful
        assert [group.name for group, _ in hub.rule_groups()] == ["warmth"]
        file.write_text("groups: [7]")
        assert (await hub.reload_rules()).problems == hub.last_reload().problems != ()
        assert [group.name for group, _ in hub.rule_groups()] == ["warmth"]
        hub.close()

    asyncio.run(story())


def test_what_a_fleet_is_stays_known_while_the_journal_is_away(tmp_path: Path) -> None:
    async def story() -> None:
        time = ManualClock(NOON)
        hub = Hub(settings.Settings(hub=settings.Hub(data=str(tmp_path / "kept"))), time=time)
        hub.open()
        hub.fleet.expect([Node("main", "n1", "h200", expected_gpus=8)], to_ms(time.now()))
        hub.journal._connection.execute("ALTER TABLE incident RENAME TO unreadable")
        await hub._append_standing()
        known = await hub.ask('{__name__=~"watchkeeper_node_.+|watchkeeper_hub_.+"}', to_ms(time.now()))
        assert {"n1", ""} <= {labels.get("Hostname", "") for labels in known.frame.labels}
        hub.close()

    asyncio.run(story())


@pytest.mark.slow
def test_an_alertmanager_is_told_although_the_journal_could_not_be_read_at_first(tmp_path: Path) -> None:
    async def story(url: str, web: Web) -> None:
        notify = settings.Notify(via=settings.NotifyVia.ALERTMANAGER, alertmanager_urls=(url,))
        hub = Hub(settings.Settings(settings.Hub(data=str(tmp_path)), notify=notify), time=ScaledClock())
        hub.open()
        hub.journal._connection.execute("ALTER TABLE incident RENAME TO unreadable")
        loops = [asyncio.create_task(loop) for loop in hub._leading_loops()]
        async with asyncio.timeout(60):
            while not any(loop.done() for loop in loops) and not hub._failures.get(loop="alertmanager"):
                await asyncio.sleep(0.01)
            hub.journal._connection.execute("ALTER TABLE unreadable RENAME TO incident")
            await hub.take_events([replace(xid(79, gpu(0), 0), at=hub.clock.now())])
            while not web.got:
                await asyncio.sleep(0.01)
        for loop in loops:
            loop.cancel()
        await asyncio.gather(*loops, return_exceptions=True)
        hub.close()

    web = Web()
    with running(web) as port:
        asyncio.run(story(f"http://127.0.0.1:{port}", web))
    assert "gpu_fell_off_bus" in str(web.got)
