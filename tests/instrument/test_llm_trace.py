"""Recorded requests to a language model, replayed through the middleware: percentiles as good as the buckets allow.

The times of arrival and the numbers of tokens are the trace's; how long a token takes is ours. Time passes only while
everybody sleeps, so the exact values are exact.
"""

from __future__ import annotations

import asyncio
import csv
import math
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import pytest

from tests.instrument import pages, virtual_time
from tests.support.paths import SHARED
from watchkeeper.instrument.exports import Exports
from watchkeeper.instrument.inference import DURATION_BOUNDS, InferenceMonitor, current_request
from watchkeeper.model.labels import Labels
from watchkeeper.model.samples import Sample
from watchkeeper.query.embedded import EmbeddedEngine
from watchkeeper.store.head.head import Head

AZURE = SHARED / "corpus" / "traces" / "azure_llm_2023_conv.csv"
PREFILL_SECONDS, TOKEN_SECONDS, PIECE_TOKENS = 0.0003, 0.03, 64
TracedRequest = tuple[float, int, int]


def azure() -> list[TracedRequest]:
    if not AZURE.exists():
        pytest.skip(f"the trace {AZURE.name} is not here")
    with AZURE.open() as file:
        rows = [
            (datetime.fromisoformat(row["TIMESTAMP"][:26]), int(row["ContextTokens"]), int(row["GeneratedTokens"]))
            for row in csv.DictReader(file)
        ]
    first = rows[0][0]
    return [((at - first).total_seconds(), prompt, made) for at, prompt, made in rows]


async def model(scope: Any, receive: Any, send: Any) -> None:
    """Streams its answer in pieces, as slowly as a model of this size would."""
    prompt, generated = scope["asked"]
    request = current_request()
    assert request is not None
    request.record_tokens(prompt_tokens=prompt, generated_tokens=generated)
    await asyncio.sleep(PREFILL_SECONDS * prompt)
    await send({"type": "http.response.start", "status": 200, "headers": []})
    for begun in range(0, generated, PIECE_TOKENS):
        await asyncio.sleep(TOKEN_SECONDS * min(PIECE_TOKENS, generated - begun))
        await send({"type": "http.response.body", "body": b"x", "more_body": True})
    await send({"type": "http.response.body", "body": b""})


def replay(requests: Sequence[TracedRequest]) -> tuple[InferenceMonitor, list[float]]:
    """The monitor after all requests, and how long each of them took by the clock of the client."""
    taken: list[float] = []
    made: list[InferenceMonitor] = []

    async def all_of_them(loop: virtual_time.VirtualLoop) -> None:
        monitor = InferenceMonitor("llama", "2", Exports(), clock=loop.time)
        made.append(monitor)
        app = monitor.asgi(model)

        async def send(_: Any) -> None: ...

        async def send_request(at: float, prompt: int, generated: int) -> None:
            await asyncio.sleep(at)
            began = loop.time()
            await app({"type": "http", "path": "/", "headers": [], "asked": (prompt, generated)}, None, send)
            taken.append(loop.time() - began)

        await asyncio.gather(*(send_request(*each) for each in requests))

    virtual_time.run(all_of_them)
    return made[0], sorted(taken)


def estimated(monitor: InferenceMonitor, share: float) -> float:
    """What PromQL makes of the page."""
    engine = EmbeddedEngine(Head())
    engine.appender.append(Sample(labels, 1000, value) for labels, value in pages.series(monitor).items())
    query = f"histogram_quantile({share}, inference_request_duration_seconds_bucket)"
    answer: dict[Labels, float] = engine.instant(query, 1000).latest()
    (value,) = answer.values()
    return value


def assert_close(monitor: InferenceMonitor, exact: Sequence[float]) -> None:
    for share in (0.5, 0.95, 0.99):
        truth = exact[math.ceil(share * len(exact)) - 1]
        above = next(bound for bound in DURATION_BOUNDS if bound >= truth)
        below = max((bound for bound in (0.0, *DURATION_BOUNDS) if bound < truth), default=0.0)
        assert below <= estimated(monitor, share) <= above, f"p{share * 100:g} is {truth:.3f} s"
    assert pages.value(monitor, "inference_request_duration_seconds_sum") == pytest.approx(sum(exact))
    assert pages.value(monitor, "inference_request_duration_seconds_count") == len(exact)


def test_percentiles_of_requests_of_all_lengths_lie_in_their_buckets() -> None:
    requests = [(0.7 * number, 10 + 37 * number % 900, 1 + 53 * number % 400) for number in range(500)]
    monitor, exact = replay(requests)
    assert_close(monitor, exact)
    assert pages.value(monitor, "inference_generated_tokens_total") == sum(generated for _, _, generated in requests)


@pytest.mark.slow
def test_an_hour_of_azures_conversations_keeps_its_percentiles() -> None:
    requests = azure()
    monitor, exact = replay(requests)
    assert len(exact) == len(requests) > 19_000
    assert_close(monitor, exact)
