"""What if, over a real socket: recorded jobs on the hub's own fleet, before and after a change."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from tests.support.web.job_tables import JOBS
from tests.web.canned_engine import CannedQueries
from tests.web.running import Reply, Site, serving
from tests.web.small_hub import SmallHub
from watchkeeper.capacity import hub_jobs
from watchkeeper.cli.accounting.capacity import command
from watchkeeper.model.labels import Labels
from watchkeeper.query.engine import Frame, QueryRange, QueryResult, ResultType


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with serving(SmallHub()) as running:
        yield running


class BusyQueries(CannedQueries):
    """Its usage rules have recorded four jobs: two of 16 GPUs one after the other, one of half a GPU, one that runs.

    It began to look 22 hours ago.
    """

    async def range(self, expr: str, span: QueryRange) -> QueryResult:
        hours = (span.times / 1000 - self.now_ms / 1000) / 3600
        if expr == hub_jobs.RECORDED_EXPRESSION:
            ones = np.ones((1, len(hours)))
            return QueryResult(ResultType.MATRIX, Frame([Labels({})], span.times, ones, hours[None, :] >= -22))
        assert expr == hub_jobs.EXPRESSION
        held = {
            "a": np.where((hours >= -20) & (hours < -18), 16.0, 0.0),
            "b": np.where((hours >= -18) & (hours < -17), 16.0, 0.0),
            "c": np.where((hours >= -3) & (hours < -2), 0.5, 0.0),
            "d": np.where(hours >= -1, 8.0, 0.0),
        }
        labels = [Labels({"cluster": "main", "workload_kind": "slurm_job", "workload": name}) for name in held]
        values = np.array(list(held.values()))
        return QueryResult(ResultType.MATRIX, Frame(labels, span.times, values, values > 0))


def test_without_a_file_the_jobs_are_those_that_the_hub_has_recorded() -> None:
    hub = SmallHub()
    hub.queries = BusyQueries(hub.engine, hub.clock)
    with serving(hub) as site:
        answer = replay(site, remove_racks=["r02"]).json
        assert answer["jobs"] == {"jobs": 4, "began_before": 0, "without_end": 1, "wait_known": 0}
        # The two hours without samples do not count.
        assert answer["until"] - answer["since"] == pytest.approx(22 * 3600, abs=600)
        assert answer["before"]["utilisation"] == pytest.approx((16 * 3 + 0.5 + 8) / (32 * 22), abs=0.01)
        assert (answer["before"]["peak_gpus"], answer["after"]["gpus"]) == (16, 16)
        assert answer["before"]["gpu_hours_used"] == pytest.approx(16 * 3 + 0.5 + 8, abs=1.5)
        assert any("a scheduler" in text or "no scheduler" in text for text in answer["assumes"])
        result = CliRunner().invoke(command, ["whatif", "--hub", site.url, "--add", "8"])
        assert "With 8 GPUs added" in result.output
        assert "4 jobs (this hub, 20" in result.output
        refused = CliRunner().invoke(command, ["whatif", "--hub", site.url, "--gpus", "8"])
        assert "--gpus applies to a table of jobs" in refused.output


def test_a_hub_without_recorded_jobs_answers_409(site: Site) -> None:
    reply = replay(site, window="1h")
    assert (reply.status, "has recorded no job in the last 1h" in reply.json["error"]) == (409, True)


def replay(site: Site, **body: Any) -> Reply:
    return site.ask("/api/capacity/whatif", method="POST", body=body)


def test_with_twice_the_fleet_no_job_waits(site: Site) -> None:
    answer = replay(site, jobs=JOBS, add=32).json
    assert (answer["before"]["gpus"], answer["after"]["gpus"]) == (32, 64)
    assert answer["before"]["wait"]["max"] == 3600
    assert answer["after"]["wait"]["max"] == 0


def test_without_a_rack_jobs_wait_longer_and_an_unknown_rack_is_refused(site: Site) -> None:
    assert replay(site, jobs=JOBS, remove_racks=["r02"]).json["after"]["wait"]["max"] == 3 * 3600
    assert replay(site, jobs=JOBS, remove_racks=["r77"]).status == 400


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ({"jobs": 7}, "omit it to use the jobs that this hub recorded"),
        ({"window": "1y"}, "`window` is `1y`; expected 10m to 2w"),
        ({"window": "soon"}, "not a duration"),
        ({"jobs": JOBS, "add": -1}, "`add` must be a whole number"),
        ({"jobs": JOBS, "add": True}, "`add` must be a whole number"),
        ({"jobs": JOBS, "policy": "magic"}, "`policy` is `magic`; expected"),
        ({"jobs": JOBS, "remove_racks": "r01"}, "list of at most"),
        ({"jobs": "neither here\nnor there"}, "jobs"),
    ],
)
def test_an_invalid_body_is_refused(site: Site, body: dict[str, Any], problem: str) -> None:
    reply = replay(site, **body)
    assert reply.status == 400
    assert problem in reply.json["error"]
