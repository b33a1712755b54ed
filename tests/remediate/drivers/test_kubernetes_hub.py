"""A whole hub that may act, on a real API server: an event comes in, and the node is cordoned with our mark."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from bench import cordon
from tests.remediate.drivers import kubernetes_story as story
from tests.support.clusters.kubernetes_server import Cluster

pytestmark = [pytest.mark.alone, pytest.mark.servers, pytest.mark.slow, pytest.mark.timeout(240)]
# The bench says what it takes on a quiet machine, a twentieth of this; here it must only not wait for a loop.
MOST_MS = 3000.0


@pytest.fixture
def cluster(kubernetes: Cluster) -> Iterator[Cluster]:
    yield kubernetes
    story.clean(kubernetes)


def test_an_event_at_a_hub_that_may_act_cordons_the_node(cluster: Cluster) -> None:
    with story.driving(cluster) as driver:
        took = cordon.measure_events(cluster, driver, 2)
    assert took["event_to_cordon_ms_p99"] < MOST_MS
    # The hub may have given the node back since: the incident was resolved.
    about = cluster.ask("/api/v1/namespaces/default/events?fieldSelector=involvedObject.name=event-0")["items"]
    (message,) = [event["message"] for event in about if event["reason"] == "WatchkeeperCordoned"]
    assert "(watchkeeper:INC-" in message
