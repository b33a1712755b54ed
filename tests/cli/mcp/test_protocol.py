"""Edge cases of the Model Context Protocol, and the size limit of answers."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from watchkeeper.cli.mcp import mcp_protocol
from watchkeeper.cli.mcp.mcp_protocol import META, McpServer, McpTool, serve
from watchkeeper.cli.mcp.mcp_tools import truncated_json

ECHO = McpTool("echo", "Says it again.", lambda given: str(given["text"]), {"text": {"type": "string"}}, ("text",))
SERVER = McpServer([ECHO], [], version="1", instructions="Ask.")
MODERN = {f"{META}protocolVersion": "2026-07-28", f"{META}clientCapabilities": {}}


def send(method: str, **params: Any) -> Any:
    message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    return SERVER.answer(json.dumps(message).encode())


@pytest.mark.parametrize("version", mcp_protocol.HANDSHAKE_VERSIONS)
def test_a_supported_version_is_accepted(version: str) -> None:
    assert send("initialize", protocolVersion=version)["result"]["protocolVersion"] == version


def test_an_unknown_version_gets_the_newest_handshake_version() -> None:
    assert send("initialize", protocolVersion="1999-01-01")["result"]["protocolVersion"] == "2025-11-25"


def test_a_request_with_an_unknown_version_gets_the_supported_versions() -> None:
    error = send("tools/list", _meta={**MODERN, f"{META}protocolVersion": "2031-01-01"})["error"]
    assert error["code"] == mcp_protocol.UNSUPPORTED_VERSION
    assert "2026-07-28" in error["data"]["supported"]


def test_a_modern_response_is_complete_and_names_the_server() -> None:
    result = send("tools/list", _meta=MODERN)["result"]
    assert result["resultType"] == "complete"
    assert result["_meta"][f"{META}serverInfo"]["name"] == "watchkeeper"
    assert send("ping", _meta=MODERN)["error"]["code"] == mcp_protocol.NO_METHOD


@pytest.mark.parametrize(
    ("line", "code"),
    [
        (b"{", mcp_protocol.PARSE_ERROR),
        (b"[]", mcp_protocol.INVALID_REQUEST),
        (b'{"jsonrpc":"2.0","id":1}', mcp_protocol.INVALID_REQUEST),
        (b'{"jsonrpc":"2.0","id":1,"method":"x"}', mcp_protocol.NO_METHOD),
        (b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x"}}', mcp_protocol.INVALID_PARAMS),
        (b'{"jsonrpc":"2.0","id":1,"method":"resources/read","params":{"uri":"x"}}', mcp_protocol.NO_RESOURCE),
    ],
)
def test_invalid_requests_get_an_error_code(line: bytes, code: int) -> None:
    answer = SERVER.answer(line)
    assert answer is not None
    assert answer["error"]["code"] == code


def test_a_notification_and_an_empty_line_have_no_response() -> None:
    sink = io.BytesIO()
    serve(SERVER, io.BytesIO(b'{"jsonrpc":"2.0","method":"notifications/initialized"}\n\n'), sink)
    assert sink.getvalue() == b""


def test_a_line_that_is_too_long_is_refused_once_and_the_next_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mcp_protocol, "MAX_LINE_BYTES", 100)
    sink = io.BytesIO()
    ping = b'{"jsonrpc":"2.0","id":7,"method":"ping"}\n'
    serve(SERVER, io.BytesIO(b"x" * 950 + b"\n" + ping), sink)
    first, second = (json.loads(line) for line in sink.getvalue().splitlines())
    assert first["error"]["code"] == mcp_protocol.INVALID_REQUEST
    assert second == {"jsonrpc": "2.0", "id": 7, "result": {}}


@pytest.mark.parametrize(
    ("given", "words"),
    [({}, "is missing"), ({"text": 1}, "of type string"), ({"text": "a", "more": 1}, "unknown argument `more`")],
)
def test_invalid_arguments_get_an_answer_that_a_model_can_act_on(given: dict[str, Any], words: str) -> None:
    result = send("tools/call", name="echo", arguments=given)["result"]
    assert result["isError"]
    assert words in result["content"][0]["text"]


@given(st.binary())
def test_no_line_stops_the_server(line: bytes) -> None:
    answer = SERVER.answer(line)
    assert answer is None or "error" in answer or "result" in answer


@given(st.lists(st.text(max_size=30), max_size=60), st.lists(st.integers(), max_size=60))
def test_a_long_answer_is_truncated_and_counts_the_omitted_rows(texts: list[str], numbers: list[int]) -> None:
    text = truncated_json({"texts": texts, "numbers": numbers}, 300)
    answer = json.loads(text)
    assert len(text) <= 300
    omitted = answer.get("left_out", {})
    assert len(answer["texts"]) + omitted.get("texts", 0) == len(texts)
    assert len(answer["numbers"]) + omitted.get("numbers", 0) == len(numbers)
