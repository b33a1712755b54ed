"""InferenceMonitor: latency, time to first token, tokens, queue and codes of ASGI applications and functions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request as WebRequest
from starlette.responses import PlainTextResponse, StreamingResponse
from starlette.routing import Route

from tests.instrument import pages
from tests.support import torch_python
from tests.support.waiting import turns
from watchkeeper.instrument import page as metrics_page
from watchkeeper.instrument import tracing
from watchkeeper.instrument.asgi import InferenceMiddleware
from watchkeeper.instrument.exports import Exports
from watchkeeper.instrument.inference import InferenceMonitor, current_request

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = f"00-{TRACE}-00f067aa0ba902b7-01"


class Hands:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def hands() -> Hands:
    return Hands()


@pytest.fixture
def monitor(hands: Hands) -> InferenceMonitor:
    return InferenceMonitor("llama", "3", Exports(), clock=hands)


def ask(app: Any, path: str = "/v1/chat", **headers: str) -> list[dict[str, Any]]:
    """One request to an ASGI application; the messages that it sent."""
    sent: list[dict[str, Any]] = []
    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    scope = {
        "type": "http",
        "method": "GET",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": raw,
    }

    async def receive() -> dict[str, Any]:
        await asyncio.Event().wait()
        return {}

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(app(scope, receive, send))
    return sent


def served(monitor: InferenceMonitor, hands: Hands) -> Any:
    """Chat streams three pieces: the first after 2 s, then one each 0.5 s."""

    async def pieces() -> AsyncIterator[bytes]:
        for wait in (2.0, 0.5, 0.5):
            hands.now += wait
            yield b"word "

    async def chat(_: WebRequest) -> StreamingResponse:
        return StreamingResponse(pieces())

    async def plain(_: WebRequest) -> PlainTextResponse:
        hands.now += 0.3
        return PlainTextResponse("whole")

    async def broken(_: WebRequest) -> PlainTextResponse:
        raise RuntimeError("no memory")

    routes = [Route("/v1/chat", chat), Route("/v1/embed", plain), Route("/v1/broken", broken), Route("/health", plain)]
    app = Starlette(routes=routes)
    app.add_middleware(InferenceMiddleware, monitor=monitor, paths=("/v1/",), metrics_path="/metrics")
    return app


def bucket(monitor: InferenceMonitor, name: str, le: str) -> float | None:
    return pages.value(monitor, f"{name}_bucket", le=le, model_name="llama", model_version="3")


def test_a_streamed_response_has_time_to_first_token_and_time_per_token(
    monitor: InferenceMonitor, hands: Hands
) -> None:
    sent = ask(served(monitor, hands))
    assert b"".join(message.get("body", b"") for message in sent) == b"word word word "
    assert (bucket(monitor, "inference_request_duration_seconds", "2.5"), _sum(monitor, "request_duration")) == (0, 3.0)
    assert (bucket(monitor, "inference_time_to_first_token_seconds", "2.5"), _sum(monitor, "time_to_first")) == (1, 2.0)
    assert _sum(monitor, "time_per_output") == 0.5
    assert pages.value(monitor, "inference_generated_tokens_total") == 3
    assert pages.value(monitor, "inference_requests_total", code="200") == 1


def _sum(monitor: InferenceMonitor, part: str) -> float:
    (total,) = [
        value
        for labels, value in pages.series(monitor).items()
        if part in labels["__name__"] and labels["__name__"].endswith("_sum")
    ]
    return total


def test_a_response_in_one_piece_has_no_time_to_first_token(monitor: InferenceMonitor, hands: Hands) -> None:
    ask(served(monitor, hands), "/v1/embed")
    assert bucket(monitor, "inference_request_duration_seconds", "0.5") == 1
    assert pages.value(monitor, "inference_time_to_first_token_seconds_count") is None


def test_an_application_that_fails_is_a_500_and_still_fails(monitor: InferenceMonitor, hands: Hands) -> None:
    with pytest.raises(RuntimeError, match="no memory"):
        ask(served(monitor, hands), "/v1/broken")
    assert pages.value(monitor, "inference_requests_total", code="500") == 1
    assert pages.value(monitor, "inference_requests_running") == 0


def test_other_paths_and_the_metrics_page_are_not_measured(monitor: InferenceMonitor, hands: Hands) -> None:
    app = served(monitor, hands)
    ask(app, "/health")
    page = ask(app, "/metrics", accept="application/openmetrics-text")
    assert pages.read(page[1]["body"], openmetrics=True)
    assert pages.value(monitor, "inference_requests_total", code="200") is None


def test_a_cancelled_coroutine_counts_as_a_disconnected_client(monitor: InferenceMonitor) -> None:
    @monitor.measured
    async def answer() -> None:
        await asyncio.Event().wait()

    async def leave() -> None:
        task = asyncio.create_task(answer())
        await turns()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(leave())
    assert pages.value(monitor, "inference_requests_total", code="499") == 1


def test_a_client_that_disconnects_is_a_499(monitor: InferenceMonitor) -> None:
    async def forever(scope: Any, receive: Any, send: Any) -> None:
        await asyncio.Event().wait()

    async def leave() -> None:
        task = asyncio.create_task(monitor.asgi(forever)({"type": "http", "path": "/", "headers": []}, None, None))
        await turns()
        assert pages.value(monitor, "inference_requests_running") == 1
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(leave())
    assert pages.value(monitor, "inference_requests_total", code="499") == 1


def test_the_callers_trace_is_the_exemplar_of_its_bucket(monitor: InferenceMonitor, hands: Hands) -> None:
    ask(served(monitor, hands), traceparent=PARENT)
    text = pages.text(monitor, is_openmetrics=True).decode()
    (line,) = [line for line in text.splitlines() if "request_duration_seconds_bucket" in line and "trace_id" in line]
    assert 'le="5"' in line
    assert f'# {{trace_id="{TRACE}"}} 3 ' in line
    assert "trace_id" not in pages.text(monitor).decode()


@pytest.mark.parametrize(
    "wrong", ["", "00-0-1-01", PARENT.upper(), f"00-{'0' * 32}-00f067aa0ba902b7-01", f"ff{PARENT[2:]}"]
)
def test_an_invalid_traceparent_is_ignored(wrong: str) -> None:
    assert tracing.parse_trace_id({"traceparent": PARENT}) == TRACE
    assert tracing.parse_trace_id({"traceparent": wrong}) is None


def test_a_queue_is_exported_once_the_program_reports_it(monitor: InferenceMonitor, hands: Hands) -> None:
    assert pages.value(monitor, "inference_requests_waiting") is None
    with monitor.request() as request, request.queueing():
        hands.now += 4.0
        assert pages.value(monitor, "inference_requests_waiting") == 1
        assert pages.value(monitor, "inference_requests_running") == 0
    assert pages.value(monitor, "inference_requests_waiting") == 0


def test_reported_token_counts_take_precedence(monitor: InferenceMonitor, hands: Hands) -> None:
    @monitor.measured
    def answer() -> Iterator[str]:
        request = current_request()
        assert request is not None
        request.record_tokens(prompt_tokens=11, generated_tokens=5)
        for _ in range(2):
            hands.now += 1.0
            yield "two words and more"

    assert len(list(answer())) == 2
    assert pages.value(monitor, "inference_prompt_tokens_total") == 11
    assert pages.value(monitor, "inference_generated_tokens_total") == 5
    assert _sum(monitor, "time_per_output") == 0.25
    assert current_request() is None


def test_functions_and_coroutines_are_measured_with_their_errors(monitor: InferenceMonitor, hands: Hands) -> None:
    @monitor.measured
    def half(number: int) -> float:
        hands.now += 1.0
        return 1 / number

    @monitor.measured
    async def later(number: int) -> float:
        return half(number)

    assert half(2) == 0.5
    with pytest.raises(ZeroDivisionError):
        asyncio.run(later(0))
    assert pages.value(monitor, "inference_requests_total", code="500") == 2
    assert pages.value(monitor, "inference_requests_total", code="200") == 1


def test_a_stream_that_is_closed_early_is_a_499(monitor: InferenceMonitor) -> None:
    @monitor.measured
    async def words() -> AsyncIterator[str]:
        while True:
            yield "word"

    async def take_one() -> None:
        stream = words()
        assert await anext(stream) == "word"
        await stream.aclose()  # type: ignore[attr-defined]

    asyncio.run(take_one())
    assert pages.value(monitor, "inference_requests_total", code="499") == 1


def test_label_sets_are_limited() -> None:
    counters = metrics_page.Counters("made_total", "made", ("name",))
    for number in range(3 * metrics_page.MAX_LABEL_SETS):
        counters.add((f"n{number}",))
    assert len(counters.values_by_labels) == metrics_page.MAX_LABEL_SETS + 1
    assert counters.values_by_labels[metrics_page.OTHER,].value == 2 * metrics_page.MAX_LABEL_SETS


TRACED = """
import asyncio
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from watchkeeper.instrument.exports import Exports
from watchkeeper.instrument.inference import InferenceMonitor, current_request
from watchkeeper.instrument.page import MetricsPage

kept = InMemorySpanExporter()
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(kept))
trace.set_tracer_provider(provider)
monitor = InferenceMonitor("llama", "3", Exports())

async def app(scope, receive, send):
    with current_request().queueing():
        await asyncio.sleep(0.01)
    with trace.get_tracer("app").start_as_current_span("tokenize"):
        pass
    await send({"type": "http.response.start", "status": 200, "headers": []})
    for piece in (b"a", b"b"):
        await asyncio.sleep(0.01)
        await send({"type": "http.response.body", "body": piece, "more_body": True})
    await send({"type": "http.response.body", "body": b""})

async def send(message):
    pass

headers = [(b"traceparent", b"PARENT")]
asyncio.run(monitor.asgi(app)({"type": "http", "path": "/", "headers": headers}, None, send))
spans = {span.name: span for span in kept.get_finished_spans()}
root = spans["inference llama"]
assert {f"{span.context.trace_id:032x}" for span in spans.values()} == {"TRACE"}
assert f"{root.parent.span_id:016x}" == "00f067aa0ba902b7"
for name in ("queue", "prefill", "decode", "tokenize"):
    assert spans[name].parent.span_id == root.context.span_id, name
    assert root.start_time - 5e6 <= spans[name].start_time <= spans[name].end_time <= root.end_time, name
assert spans["queue"].end_time == spans["prefill"].start_time
assert spans["prefill"].end_time == spans["decode"].start_time
page = MetricsPage(is_openmetrics=True)
monitor.write(page)
assert 'trace_id="TRACE"' in page.encode().decode()
print(sorted(spans), root.attributes["gen_ai.usage.output_tokens"])
"""


@pytest.mark.servers
def test_opentelemetry_gets_a_span_for_each_phase(tmp_path: Path) -> None:
    program = TRACED.replace("PARENT", PARENT).replace("TRACE", TRACE)
    output = torch_python.run(program, folder=tmp_path, needs=("opentelemetry",))
    assert output == "['decode', 'inference llama', 'prefill', 'queue', 'tokenize'] 2\n"
