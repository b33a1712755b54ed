"""The hub as a whole: a failed diagnosis is retried, and noted on the timeline after the last attempt."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.hub_stories import HOT, NOON, gpu, xid
from tests.support.loopback import reply, serve
from tests.support.manual_clock import ManualClock
from tests.support.opened import opened
from tests.support.waiting import until_async
from tests.support.webhooks import Web, running
from watchkeeper.config import settings
from watchkeeper.hub.incident_service import MAX_ATTEMPTS
from watchkeeper.kit.clock import ScaledClock, to_ms
from watchkeeper.model.actions import Action
from watchkeeper.model.fleet import Gpu, Node, NodeRegistration
from watchkeeper.notify import heartbeat
from watchkeeper.remediate.drivers import cluster_driver


class Stubborn(cluster_driver.DryRunDriver):
    """A cluster that breaks the first times it is asked."""

    def __init__(self, failures: int) -> None:
        self.failures = failures

    def describe(self, action: Action) -> str:
        self.failures -= 1
        if self.failures >= 0:
            raise ConnectionResetError("gone away")
        return super().describe(action)


def test_a_hub_that_is_built_before_its_samples_are_open_stores_what_it_scrapes(tmp_path: Path) -> None:
    async def story() -> None:
        async with serve(lambda _: reply("gpu_celsius 41\n")) as target:
            (tmp_path / "targets.json").write_text(json.dumps([{"targets": [target.address]}]))
            fleet = settings.FleetSettings(
                sd_files=(str(tmp_path / "targets.json"),), scrape_interval="1s", scrape_timeout="1s"
            )
            hub = opened(
                settings.Settings(hub=settings.HubSettings(data=str(tmp_path / "kept")), fleet=fleet),
                time=ScaledClock(),
            )
            stop = asyncio.Event()
            running_hub = asyncio.create_task(hub.run(stop))
            engine = hub.samples.engine
            await until_async(lambda: bool(engine.instant("gpu_celsius", to_ms(hub.runtime.clock.now())).latest()))
            stop.set()
            await running_hub
            hub.close()

    asyncio.run(story())


def diagnose_with(folder: Path, driver: Stubborn) -> list[str]:
    """What the timeline of one incident says whose diagnosis meets this cluster."""

    async def story() -> list[str]:
        time = ManualClock(NOON)
        hub = opened(settings.Settings(hub=settings.HubSettings(data=str(folder / "kept"))), time=time, driver=driver)
        diagnosing = next(loop for loop in hub.incidents.loops() if loop.name == "diagnosis")
        loop = asyncio.create_task(hub.loops.repeat(diagnosing))
        await hub.incidents.ingest_events([xid(79, gpu(0), 0)])

        # The diagnosis runs in a thread, which this clock does not control.
        async def is_planned() -> bool:
            await time.advance(1)
            return any(entry.kind in ("plan", "noted") for entry in hub.services.journal.timeline("INC-1"))

        await until_async(is_planned)
        texts = [entry.text for entry in hub.services.journal.timeline("INC-1")]
        loop.cancel()
        await asyncio.gather(loop, return_exceptions=True)
        hub.close()
        return texts

    return asyncio.run(story())


def test_a_diagnosis_that_fails_once_is_retried(tmp_path: Path) -> None:
    texts = diagnose_with(tmp_path, Stubborn(failures=1))
    assert texts[1] == "GPU-0 on n1 fell off the bus"


def test_a_diagnosis_that_keeps_failing_is_noted_on_the_timeline(tmp_path: Path) -> None:
    texts = diagnose_with(tmp_path, Stubborn(failures=MAX_ATTEMPTS))
    assert texts[1:] == ["Diagnosis failed 3 times. Last error: ConnectionResetError: gone away"]


def test_a_gpu_that_fails_before_its_first_scrape_has_the_index_that_its_node_registered(tmp_path: Path) -> None:
    async def story() -> None:
        hub = opened(settings.Settings(hub=settings.HubSettings(data=str(tmp_path / "kept"))), time=ManualClock(NOON))
        hub.fleet.register_node(NodeRegistration("sim", "n1", gpus=(Gpu("GPU-3", index=3), Gpu("GPU-4"))), "127.0.0.1")
        await hub.incidents.ingest_events([xid(79, gpu(3), 0), xid(79, gpu(4), 0)])
        titles = [incident.title for incident in hub.current.stages.journal.incidents(open_only=True, limit=9)]
        assert sorted(titles) == ["GPU 3 on n1 fell off the bus", "GPU-4 on n1 fell off the bus"]
        hub.close()

    asyncio.run(story())


def test_a_hub_reloads_its_rules_and_shows_the_active_ones(tmp_path: Path) -> None:
    async def story() -> None:
        file = tmp_path / "rules.yaml"
        file.write_text(HOT)
        chosen = settings.Settings(
            hub=settings.HubSettings(data=str(tmp_path / "kept")), rules=settings.RulesSettings(files=(str(file),))
        )
        hub = opened(chosen, time=ManualClock(NOON))
        file.write_text(HOT.replace("name: heat", "name: warmth"))
        assert (await hub.rules.reload()).is_successful
        assert [group.name for group, _ in hub.rules.groups()] == ["warmth"]
        file.write_text("groups: [7]")
        assert (await hub.rules.reload()).problems == hub.rules.last_reload.problems != ()
        assert [group.name for group, _ in hub.rules.groups()] == ["warmth"]
        hub.close()

    asyncio.run(story())


def test_the_inventory_stays_known_while_the_journal_is_unavailable(tmp_path: Path) -> None:
    async def story() -> None:
        time = ManualClock(NOON)
        hub = opened(settings.Settings(hub=settings.HubSettings(data=str(tmp_path / "kept"))), time=time)
        hub.fleet.fleet.set_expected_nodes([Node("main", "n1", "h200", expected_gpus=8)], to_ms(time.now()))
        hub.current.stages.journal._connection.execute("ALTER TABLE incident RENAME TO unreadable")
        await hub.own_series.append()
        result = await hub.services.queries.instant(
            '{__name__=~"watchkeeper_node_.+|watchkeeper_hub_.+"}', to_ms(time.now())
        )
        assert {"n1", ""} <= {labels.get("Hostname", "") for labels in result.frame.labels}
        hub.close()

    asyncio.run(story())


def test_every_loop_that_the_heartbeat_needs_exists(tmp_path: Path) -> None:
    async def story() -> None:
        hub = opened(settings.Settings(hub=settings.HubSettings(data=str(tmp_path / "kept"))), time=ManualClock(NOON))
        loops = [
            *hub.fleet.loops(is_leading=lambda: True),
            hub.own_series.loop(may_write=lambda: True),
            *hub.samples.loops(hub.loops.failures),
            *hub.incidents.loops(),
            *hub.rules.loops(),
        ]
        # "rule server" exists only where a server owns the rules.
        assert {loop.name.split()[0] for loop in loops} >= heartbeat.VITAL_LOOPS - {"rule"}
        hub.close()

    asyncio.run(story())


@pytest.mark.slow
def test_an_alertmanager_gets_an_alert_although_the_journal_could_not_be_read_at_first(tmp_path: Path) -> None:
    async def story(url: str, web: Web) -> None:
        notify = settings.NotifySettings(via=settings.NotifyVia.ALERTMANAGER, alertmanager_urls=(url,))
        hub = opened(settings.Settings(settings.HubSettings(data=str(tmp_path)), notify=notify), time=ScaledClock())
        journal = hub.current.stages.journal

        def rename_table(old: str, new: str) -> None:
            # In a separate transaction: inside that of a loop's thread, its failure would undo the rename.
            with journal.transaction():
                journal._connection.execute(f"ALTER TABLE {old} RENAME TO {new}")

        rename_table("incident", "unreadable")
        loops = [asyncio.create_task(loop) for loop in hub._leading_loops()]
        await until_async(lambda: any(loop.done() for loop in loops) or hub.loops._failures.get(loop="alertmanager"))
        await asyncio.to_thread(rename_table, "unreadable", "incident")
        await hub.incidents.ingest_events([replace(xid(79, gpu(0), 0), at=hub.runtime.clock.now())])
        await until_async(lambda: web.got)
        for loop in loops:
            loop.cancel()
        await asyncio.gather(*loops, return_exceptions=True)
        hub.close()

    web = Web()
    with running(web) as port:
        asyncio.run(story(f"http://127.0.0.1:{port}", web))
    assert "gpu_fell_off_bus" in str(web.got)
