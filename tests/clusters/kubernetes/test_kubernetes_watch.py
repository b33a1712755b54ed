"""Watching an API server that breaks in every way one does: what is known stays right, and nothing is listed twice."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.clusters.kubernetes.watched import running
from tests.support.clusters.api_server import CLAIMS, EVENTS, JOBS, NODES, PODS, QUOTAS, ApiServer, node, pod, serving
from tests.support.waiting import until_async
from watchkeeper.clusters.kubernetes import kubernetes_resource, kubernetes_view, kubernetes_watch
from watchkeeper.clusters.kubernetes.kubernetes_watch import KubernetesWatch
from watchkeeper.kit import clock, own_metrics
from watchkeeper.net import access
from watchkeeper.readers.clusters.kubeconfig import ApiServer as Reached

ALL = (NODES, PODS, QUOTAS, JOBS, CLAIMS, EVENTS)


@asynccontextmanager
async def watching(server: ApiServer, reached: Reached | None = None) -> AsyncIterator[KubernetesWatch]:
    # Pauses of seconds pass in hundredths.
    time = clock.ScaledClock(speed=100.0)
    registry = own_metrics.Registry()
    watch = KubernetesWatch(reached or server.reached(), cluster="main", time=time, metrics=registry)
    async with running(watch):
        yield watch


async def settled(server: ApiServer, watch: KubernetesWatch) -> None:
    await until_async(lambda: watch.is_synced and all(server.watches.get(path) for path in ALL))


def names(watch: KubernetesWatch) -> list[str]:
    return sorted(one.name for one in watch.pods())


def test_objects_are_listed_in_pages_and_then_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kubernetes_resource, "PAGE_SIZE", 3)

    async def story() -> None:
        async with serving() as server:
            server.fill(PODS, [pod(f"p{number}") for number in range(8)])
            async with watching(server) as watch:
                await settled(server, watch)
                assert len(watch.pods()) == 8
                server.put(PODS, pod("p8", gpus=2, node="n1"))
                server.delete(PODS, "p0", "research")
                await until_async(lambda: len(watch.pods()) == 8 and "p0" not in names(watch))
                assert next(one for one in watch.pods() if one.name == "p8").gpus == 2
                assert server.lists[PODS] == 1

    asyncio.run(story())


@pytest.mark.parametrize("abort", [False, True], ids=["closed", "reset"])
def test_a_watch_that_ends_goes_on_without_a_list_and_misses_nothing(abort: bool) -> None:
    async def story() -> None:
        async with serving() as server, watching(server) as watch:
            await settled(server, watch)
            server.end(PODS, abort=abort)
            server.put(PODS, pod("meanwhile"))
            await until_async(lambda: names(watch) == ["meanwhile"])
            assert server.lists[PODS] == 1

    asyncio.run(story())


def test_a_connection_that_breaks_in_the_middle_of_a_line_costs_nothing() -> None:
    async def story() -> None:
        async with serving() as server, watching(server) as watch:
            await settled(server, watch)
            server.send(PODS, b'{"type":"ADDED","object":{"metadata":{"name":"ha')
            server.end(PODS, abort=True)
            server.put(PODS, pod("whole"))
            await until_async(lambda: names(watch) == ["whole"])
            assert server.lists[PODS] == 1

    asyncio.run(story())


def test_an_expired_watch_is_listed_anew_and_what_is_gone_is_gone() -> None:
    async def story() -> None:
        async with serving() as server:
            server.fill(PODS, [pod("old"), pod("stays")])
            async with watching(server) as watch:
                await settled(server, watch)
                server.objects[PODS].pop(("research", "old"))
                server.expire(PODS)
                await until_async(lambda: names(watch) == ["stays"])
                assert server.lists[PODS] == 2
                assert server.lists[NODES] == 1

    asyncio.run(story())


def test_a_version_that_a_server_refuses_with_410_is_listed_anew() -> None:
    async def story() -> None:
        async with serving() as server, watching(server) as watch:
            await settled(server, watch)
            server.version += 10
            server.fill(PODS, [pod("after")])
            server.forget()
            server.end(PODS, abort=True)
            await until_async(lambda: names(watch) == ["after"])

    asyncio.run(story())


def test_a_bookmark_keeps_the_version_young_so_that_a_compaction_needs_no_list() -> None:
    async def story() -> None:
        async with serving() as server, watching(server) as watch:
            await settled(server, watch)
            before = watch.revision
            server.bookmark(PODS)
            await until_async(lambda: watch.revision > before)
            server.forget()
            server.end(PODS)
            server.put(PODS, pod("after"))
            await until_async(lambda: names(watch) == ["after"])
            assert server.lists[PODS] == 1

    asyncio.run(story())


def test_a_server_that_restarts_is_found_again_and_its_objects_stay_known() -> None:
    async def story() -> None:
        async with serving() as server:
            server.fill(NODES, [node("n1")])
            async with watching(server) as watch:
                await settled(server, watch)
                await server.stop()
                await until_async(lambda: any("connection refused" in one for one in watch.problems()))
                assert [one.name for one in watch.nodes()] == ["n1"]
                assert all(one.endswith("The last objects are kept") for one in watch.problems())
                await server.start()
                await until_async(lambda: not any(watch.problems()))
                assert server.lists[NODES] == 1

    asyncio.run(story())


@pytest.mark.parametrize(("status", "lists"), [(504, 2), (403, 1), (500, 1)])
def test_a_server_that_refuses_a_version_again_and_again_is_listed_anew(status: int, lists: int) -> None:
    async def story() -> None:
        async with serving() as server, watching(server) as watch:
            await settled(server, watch)
            server.refused[PODS] = status
            server.end(PODS)
            # Each failure is a refused watch; a list would be refused as well.
            failures = watch.kinds[1]._metrics.failures
            await until_async(lambda: failures.get(resource="pods") >= kubernetes_resource.REFUSALS_BEFORE_LIST)
            server.refused.clear()
            await until_async(lambda: not any(watch.problems()))
            assert server.lists[PODS] == lists

    asyncio.run(story())


def test_what_may_not_be_read_is_said_and_the_rest_is_watched() -> None:
    async def story() -> None:
        async with serving(ApiServer(refused={QUOTAS: 403})) as server, watching(server) as watch:
            await until_async(lambda: watch.is_synced and any(watch.problems()))
            (problem,) = watch.problems()
            assert "resourcequotas since" in problem
            assert "Create the role in docs/howto/kubernetes.md. None have been read yet" in problem

    asyncio.run(story())


def test_a_token_that_expires_is_read_again_from_its_file(tmp_path: Path) -> None:
    async def story() -> None:
        token = tmp_path / "token"
        token.write_text("old")
        async with serving(ApiServer(token="old")) as server:
            reached = Reached(server.url, access.Access(credentials_file=str(token)), "test")
            async with watching(server, reached) as watch:
                await settled(server, watch)
                server.token = "new"
                server.end(PODS)
                await until_async(lambda: any("token is not accepted (401)" in one for one in watch.problems()))
                token.write_text("new")
                server.put(PODS, pod("after"))
                await until_async(lambda: names(watch) == ["after"])

    asyncio.run(story())


@pytest.mark.parametrize(
    "line", [b"rubbish\n", b"[]\n", b'{"type":"ADDED"}\n', b'{"type":"ERROR","object":{"code":500,"message":"x"}}\n']
)
def test_a_line_that_is_no_change_is_said_and_survived(line: bytes) -> None:
    async def story() -> None:
        async with serving() as server, watching(server) as watch:
            await settled(server, watch)
            server.send(PODS, line)
            await until_async(lambda: server.watches[PODS] >= 2)
            server.put(PODS, pod("after"))
            await until_async(lambda: names(watch) == ["after"])

    asyncio.run(story())


def test_an_object_without_a_name_is_counted_and_left_out() -> None:
    async def story() -> None:
        async with serving() as server, watching(server) as watch:
            await settled(server, watch)
            server.send(PODS, b'{"type":"ADDED","object":{"metadata":{"resourceVersion":"1"}}}\n')
            server.put(PODS, pod("good"))
            await until_async(lambda: names(watch) == ["good"])
            assert watch.kinds[1]._metrics.unreadable.get(resource="pods") == 1

    asyncio.run(story())


RUBBISH: list[Any] = [7, None, {}, {"metadata": 1}, {"metadata": {"name": "x", "labels": [1]}}, {"involvedObject": "y"}]


@pytest.mark.parametrize("path", [*ALL])
def test_a_list_with_rubbish_in_it_keeps_the_rest(path: str) -> None:
    good = {"metadata": {"name": "good"}, "involvedObject": {"kind": "Pod", "name": "good"}}

    async def story() -> None:
        async with serving() as server:
            server.objects[path] = {("", str(number)): raw for number, raw in enumerate([*RUBBISH, good])}
            async with watching(server) as watch:
                await until_async(lambda: all(kind.is_synced for kind in watch.kinds))
                kept = next(kind.items for kind in watch.kinds if kind.kind.path == path)
                assert list(kept)[-1][-1] == "good"
                assert not list(watch.problems())

    asyncio.run(story())


def test_a_list_that_is_no_list_is_said() -> None:
    async def story() -> None:
        async with serving(ApiServer(page_bytes=lambda _: b'"hello"')) as server, watching(server) as watch:
            await until_async(lambda: any("not an object of the Kubernetes API" in one for one in watch.problems()))
            assert not watch.is_synced

    asyncio.run(story())


def test_a_server_that_is_too_old_for_claims_has_no_problem() -> None:
    async def story() -> None:
        async with serving(ApiServer(refused={CLAIMS: 404})) as server, watching(server) as watch:
            await until_async(lambda: all(kind.is_synced for kind in watch.kinds))
            assert not list(watch.problems())

    asyncio.run(story())


def test_gpus_of_a_claim_are_counted_for_the_first_pod_that_has_it() -> None:
    claim = {
        "metadata": {"name": "shared", "namespace": "research"},
        "status": {
            "allocation": {"devices": {"results": [{"driver": "gpu.nvidia.com", "device": "gpu-0"}] * 2}},
            "reservedFor": [{"resource": "pods", "name": "first"}, {"resource": "pods", "name": "second"}],
        },
    }
    pods = [pod("first", node="n1"), pod("second", node="n1")]
    for one in pods:
        one["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimName": "shared"}]

    async def story() -> None:
        async with serving() as server:
            server.fill(CLAIMS, [claim])
            server.fill(PODS, pods)
            async with watching(server) as watch:
                await until_async(lambda: all(kind.is_synced for kind in watch.kinds))
                assert {one.name: watch.gpus_of(one) for one in watch.pods()} == {"first": 2, "second": 0}
                (held,) = kubernetes_view.build_view(watch).workloads
                assert (held.workload.name, held.gpus, held.nodes) == ("first", 2, {"n1": 2})

    asyncio.run(story())


def test_more_objects_than_are_kept_is_said_with_the_limit() -> None:
    async def story() -> None:
        async with serving() as server:
            server.fill(PODS, [pod(f"p{number}") for number in range(5)])
            watch = KubernetesWatch(
                server.reached(), cluster="main", time=clock.ScaledClock(speed=100.0), metrics=own_metrics.Registry()
            )
            pods = watch.kinds[1]
            pods.kind = replace(pods.kind, limit=3)
            async with running(watch):
                await until_async(lambda: watch.is_synced)
                assert len(watch.pods()) == 3
                assert list(watch.problems()) == ["pods: the limit of 3 is reached, more are dropped"]

    asyncio.run(story())


def test_warnings_are_bounded_and_the_newest_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kubernetes_watch, "MAX_WARNINGS", 3)

    def warning(number: int) -> dict[str, object]:
        about = {"kind": "Pod", "namespace": "research", "name": f"p{number}"}
        return {"metadata": {"name": f"e{number}"}, "involvedObject": about, "reason": "FailedScheduling"}

    async def story() -> None:
        async with serving() as server:
            server.fill(EVENTS, [warning(number) for number in range(10)])
            async with watching(server) as watch:
                await settled(server, watch)
                assert watch.warning("Pod", "research", "p9") is not None
                assert watch.warning("Pod", "research", "p6") is None

    asyncio.run(story())
