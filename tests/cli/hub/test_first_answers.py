"""A hub that starts: questions about its samples are answered before its stages are there, and wrong rules end it."""

from __future__ import annotations

import asyncio
import urllib.parse
from collections.abc import Iterator
from pathlib import Path

import pytest

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


def a_hub(folder: Path, rules: str) -> tuple[settings.Settings, serving.HubBuilder]:
    """With one sample, which it finds when it is opened."""
    (folder / "rules.yml").write_text(rules)
    chosen = settings.Settings(
        hub=settings.HubSettings(data=str(folder / "kept"), port=0),
        rules=settings.RulesSettings(files=(str(folder / "rules.yml"),)),
    )
    time = clock.ManualClock(clock.from_ms(NOW_MS))
    kept = samples.Samples(runtime.Runtime(chosen, time))
    kept.open()
    kept.engine.appender.append([Sample(Labels({"__name__": "temp", "gpu": "0"}), NOW_MS, 70.0)])
    assert isinstance(kept.engine.appender, durable.DurableStore)
    kept.engine.appender.sync()
    kept.close()
    return chosen, serving.HubBuilder(samples.Samples(runtime.Runtime(chosen, time)))


def question(door: serving.HubListener) -> asyncio.Task[tuple[int, object]]:
    asked = urllib.parse.urlencode({"query": "temp", "time": NOW_MS / 1000})
    return asyncio.create_task(asyncio.to_thread(ask_json, f"{door.local_url}/api/v1/query?{asked}"))


def test_questions_are_answered_while_the_stages_are_not_there(tmp_path: Path) -> None:
    async def story() -> None:
        chosen, build = a_hub(tmp_path, RULES)
        stop = asyncio.Event()
        with serving.open_listener(chosen) as door:
            build.store.open()
            asked = question(door)

            def rest() -> Iterator[None]:
                while not asked.done():
                    assert build.built is None
                    yield
                yield from serving.build_in_steps(build)

            async with asyncio.timeout(ANSWER_SECONDS), asyncio.TaskGroup() as group:
                await serving.serve_while_building(build, door, group, steps=rest(), stop=stop)
                status, answer = await asked
                assert (status, answer["data"]["result"][0]["value"][1]) == (200, "70")  # type: ignore[index]
                groups = await asyncio.to_thread(ask_json, f"{door.local_url}/api/v1/rules")
                assert [one["name"] for one in groups[1]["data"]["groups"]] == ["heat"]
                stop.set()
        build.store.close()

    asyncio.run(story())


def test_wrong_rules_that_are_found_while_questions_are_answered_end_the_hub(tmp_path: Path) -> None:
    async def story() -> None:
        chosen, build = a_hub(tmp_path, RULES)
        (tmp_path / "rules.yml").write_text(RULES.replace("temp > 80", "temp >"))
        stop = asyncio.Event()
        with serving.open_listener(chosen) as door:
            build.store.open()
            async with asyncio.timeout(ANSWER_SECONDS), asyncio.TaskGroup() as group:
                await serving.serve_while_building(build, door, group, steps=serving.build_in_steps(build), stop=stop)
        build.store.close()

    with pytest.raises(ExceptionGroup) as raised:
        asyncio.run(story())
    assert raised.group_contains(WatchkeeperError, match="alert Hot")
