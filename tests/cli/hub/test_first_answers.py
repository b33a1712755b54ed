"""The start of a hub: queries are answered before all stages are built, and invalid rules stop it."""

from __future__ import annotations

import asyncio
import urllib.parse
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.manual_clock import ManualClock
from tests.web.running import ANSWER_SECONDS, ask_json
from watchkeeper.cli.hub import serving
from watchkeeper.config import settings
from watchkeeper.errors import WatchkeeperError
from watchkeeper.hub import runtime, samples
from watchkeeper.kit import clock
from watchkeeper.model.labels import Labels
from watchkeeper.model.samples import Sample
from watchkeeper.store import durable

NOW_MS = 1_700_000_000_000
RULES = "groups: [{name: heat, rules: [{alert: Hot, expr: temp > 80}]}]"


def configure_hub(folder: Path, rules: str) -> tuple[settings.Settings, serving.HubBuilder]:
    """With one sample, which it finds when it is opened."""
    (folder / "rules.yml").write_text(rules)
    configured = settings.Settings(
        hub=settings.HubSettings(data=str(folder / "kept"), port=0),
        rules=settings.RulesSettings(files=(str(folder / "rules.yml"),)),
    )
    time = ManualClock(clock.from_ms(NOW_MS))
    store = samples.Samples(runtime.Runtime(configured, time))
    store.open()
    store.engine.appender.append([Sample(Labels({"__name__": "temp", "gpu": "0"}), NOW_MS, 70.0)])
    assert isinstance(store.engine.appender, durable.DurableStore)
    store.engine.appender.sync()
    store.close()
    return configured, serving.HubBuilder(samples.Samples(runtime.Runtime(configured, time)))


def query_hub(listener: serving.HubListener) -> asyncio.Task[tuple[int, object]]:
    parameters = urllib.parse.urlencode({"query": "temp", "time": NOW_MS / 1000})
    return asyncio.create_task(asyncio.to_thread(ask_json, f"{listener.local_url}/api/v1/query?{parameters}"))


def test_queries_are_answered_while_the_hub_is_still_building(tmp_path: Path) -> None:
    async def story() -> None:
        configured, build = configure_hub(tmp_path, RULES)
        stop = asyncio.Event()
        with serving.open_listener(configured) as listener:
            build.store.open()
            response = query_hub(listener)

            def steps() -> Iterator[None]:
                while not response.done():
                    assert build.built is None
                    yield
                yield from serving.build_in_steps(build)

            async with asyncio.timeout(ANSWER_SECONDS), asyncio.TaskGroup() as group:
                await serving.serve_while_building(build, listener, group, steps=steps(), stop=stop)
                status, answer = await response
                assert (status, answer["data"]["result"][0]["value"][1]) == (200, "70")  # type: ignore[index]
                groups = await asyncio.to_thread(ask_json, f"{listener.local_url}/api/v1/rules")
                assert [group_json["name"] for group_json in groups[1]["data"]["groups"]] == ["heat"]
                stop.set()
        build.store.close()

    asyncio.run(story())


def test_invalid_rules_stop_a_hub_that_already_answers_queries(tmp_path: Path) -> None:
    async def story() -> None:
        configured, build = configure_hub(tmp_path, RULES)
        (tmp_path / "rules.yml").write_text(RULES.replace("temp > 80", "temp >"))
        stop = asyncio.Event()
        with serving.open_listener(configured) as listener:
            build.store.open()
            async with asyncio.timeout(ANSWER_SECONDS), asyncio.TaskGroup() as group:
                await serving.serve_while_building(
                    build, listener, group, steps=serving.build_in_steps(build), stop=stop
                )
        build.store.close()

    with pytest.raises(ExceptionGroup) as raised:
        asyncio.run(story())
    assert raised.group_contains(WatchkeeperError, match="alert Hot")
