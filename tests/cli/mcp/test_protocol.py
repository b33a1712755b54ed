"""The protocol's edges, line by line, and the size of answers."""

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


def ask(method: str, **asked: Any) -> Any:
    message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": asked}
    return SERVER.answer(json.dumps(message).encode())


@pytest.mark.parametrize("wanted", mcp_protocol.HANDSHAKE_VERSIONS)
def test_a_known_version_is_agreed_to(wanted: str) -> None:
    assert ask("initialize", protocolVersion=wanted)["result"]["protocolVersion"] == wanted


def test_an_unknown_version_is_answered_with_the_newest_of_the_handshake() -> None:
    assert ask("initialize", protocolVersion="1999-01-01")["result"]["protocolVersion"] == "2025-11-25"


def test_a_request_that_names_an_unknown_version_is_told_which_there_are() -> None:
    error = ask("tools/list", _meta={**MODERN, f"{META}protocolVersion": "2031-01-01"})["error"]
    assert error["code"] == mcp_protocol.UNSUPPORTED_VERSION
    assert "2026-07-28" in error["data"]["supported"]


def test_a_modern_answer_says_that_it_is_complete_and_who_gave_it() -> None:
    result = ask("tools/list", _meta=MODERN)["result"]
    assert result["resultType"] == "complete"
    assert result["_meta"][f"{META}serverInfo"]["name"] == "watchkeeper"
    assert ask("ping", _meta=MODERN)["error"]["code"] == mcp_protocol.NO_METHOD


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
def test_what_cannot_be_answered_is_refused_with_its_code(line: bytes, code: int) -> None:
    answer = SERVER.answer(line)
    assert answer is not None
    assert answer["error"]["code"] == code


def test_a_notification_and_an_empty_line_have_no_answer() -> None:
    sink = io.BytesIO()
    serve(SERVER, io.BytesIO(b'{"jsonrpc":"2.0","method":"notifications/initialized"}\n\n'), sink)
    assert sink.getvalue() == b""


def test_a_line_that_is_too_long_is_refused_once_and_the_next_is_heard(monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_wrong_arguments_are_an_answer_that_a_model_can_act_on(given: dict[str, Any], words: str) -> None:
    result = ask("tools/call", name="echo", arguments=given)["result"]
    assert result["isError"]
    assert words in result["content"][0]["text"]


@given(st.binary())
def test_no_line_ends_the_server(line: bytes) -> None:
    answer = SERVER.answer(line)
    assert answer is None or "error" in answer or "result" in answer


@given(st.lists(st.text(max_size=30), max_size=60), st.lists(st.integers(), max_size=60))
def test_a_long_answer_is_cut_and_says_how_much_is_left_out(texts: list[str], numbers: list[int]) -> None:
    said = truncated_json({"texts": texts, "numbers": numbers}, 300)
    found = json.loads(said)
    assert len(said) <= 300
    left = found.get("left_out", {})
    assert len(found["texts"]) + left.get("texts", 0) == len(texts)
    assert len(found["numbers"]) + left.get("numbers", 0) == len(numbers)
