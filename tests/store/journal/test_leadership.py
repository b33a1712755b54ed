"""A hub's place among several, in this process: who leads, who may act, and what happens when that fails."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.store.journal.journal_rows import NOON, xid
from tests.support import postgres_server
from tests.support.waiting import until_async
from watchkeeper.cli.hub import store as store_command
from watchkeeper.config import settings
from watchkeeper.errors import ActionFailed, ActionRefused, NotLeader, StoreError
from watchkeeper.hub.leadership import Leadership
from watchkeeper.kit import own_metrics
from watchkeeper.model import actions, fleet, incidents
from watchkeeper.remediate.drivers import cluster_driver
from watchkeeper.store.journal import postgres as servers
from watchkeeper.store.journal.journal import Journal


@pytest.fixture
def url_file(tmp_path: Path, postgres: postgres_server.Cluster) -> Path:
    (tmp_path / "journal.url").write_text(postgres.database())
    return tmp_path / "journal.url"


def a_hub(url_file: Path, *, lease: str = "60s", port: int = 9480) -> Leadership:
    chosen = settings.Settings(
        hub=settings.HubSettings(port=port), journal=settings.JournalSettings(url_file=str(url_file), lease=lease)
    )
    return Leadership(chosen, metrics=own_metrics.Registry())


@pytest.fixture
def first(url_file: Path) -> Iterator[Leadership]:
    hub = a_hub(url_file)
    yield hub
    hub.close()


def test_the_second_hub_follows_until_the_first_releases_the_lease(first: Leadership, url_file: Path) -> None:
    second = a_hub(url_file, port=9481)
    with closing(first.open()) as leading, closing(second.open()) as following:
        leading.save_events([xid(1)], NOON)
        assert first.not_leading_reason is None
        assert "follows the leader" in str(second.not_leading_reason)
        with pytest.raises(NotLeader, match="9480"):
            following.save_events([xid(2)], NOON)
        first.close()
        second._renew_or_acquire()
        assert second._newest is not None
        assert len(second._newest.save_events([xid(2)], NOON)) == 1
        with pytest.raises(NotLeader, match="epoch 1 has ended"):
            leading.save_events([xid(3)], NOON)
        second._newest.close()
    second.close()


def test_nothing_runs_after_the_lease_may_have_expired(first: Leadership) -> None:
    place, id = fleet.Place("main", node="n1"), incidents.IncidentId("INC-1")
    action = actions.Action(actions.ActionId("A-1"), actions.ActionKind.CORDON, place, id, "because")
    with closing(first.open()):
        cluster = first.fence_driver(cluster_driver.DryRunDriver())
        # Where the call is made, this driver says no.
        with pytest.raises(ActionRefused):
            cluster.perform(action)
        first._lease_until = 0.0
        with pytest.raises(ActionFailed, match=r"the lease of this hub has expired\. No action was sent"):
            cluster.perform(action)
        first._renew_or_acquire()
        with pytest.raises(ActionRefused):
            cluster.perform(action)
        first._epoch += 1
        with pytest.raises(ActionFailed):
            cluster.perform(action)


def test_a_leader_whose_loop_hangs_does_not_renew_its_lease(first: Leadership) -> None:
    with closing(first.open()):
        first._lease_until, first._loop_answered_at = 7.0, first._loop_answered_at - 1_000_000
        first._try_to_renew()
        assert first._lease_until == 7.0


def test_a_hub_that_cannot_read_the_journal_lets_another_one_lead(url_file: Path) -> None:
    async def story() -> None:
        first, second = a_hub(url_file, lease="1s"), a_hub(url_file)
        at_work, stop = asyncio.Event(), asyncio.Event()

        def join(_: Journal) -> None:
            raise StoreError("a row is not a valid Event")

        async def work() -> None:
            at_work.set()
            await asyncio.Event().wait()

        with closing(first.open()):
            running = asyncio.create_task(first.run(join, lambda: [work()], stop))
            await at_work.wait()
            assert first._connection is not None
            first._connection.abort()
            await until_async(lambda: "valid Event" in str(first.not_leading_reason))
            stop.set()
            await running
            second.open().close()
            assert second.is_leading
            assert first._stages_journal is not None
            first._stages_journal.close()
        for hub in (first, second):
            hub.close()

    asyncio.run(story())


def test_a_journal_has_one_place(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not both"):
        settings.JournalSettings(path="a", url_file="b")
    with pytest.raises(ValueError, match="below the minimum, 1s"):
        settings.JournalSettings(lease="500ms")


def test_verify_reads_a_journal_on_a_server(first: Leadership, url_file: Path) -> None:
    with closing(first.open()) as journal:
        journal.save_events([xid(1)], NOON)
    (url_file.parent / "hub.toml").write_text('[journal]\nurl_file = "journal.url"\n')
    line = ["verify", "--config", str(url_file.parent / "hub.toml")]
    result = CliRunner().invoke(store_command.command, line)
    assert (result.exit_code, result.output) == (0, "no damage found\n")
    with servers.read_server(url_file).connect() as raw:
        raw.execute("UPDATE event SET body = replace(body, '79', '31')")
    result = CliRunner().invoke(store_command.command, line)
    assert result.exit_code == 1
    assert "PostgreSQL database" in result.output
    assert "entry 1 of the journal or one of its rows was changed" in result.output
