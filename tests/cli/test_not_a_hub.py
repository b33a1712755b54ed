"""Commands against a server that is not a hub, or a hub that cannot answer: one line and exit code 3."""

from __future__ import annotations

import contextlib
import http.server
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from watchkeeper.cli import main

QUESTIONS = (["incidents"], ["nodes"], ["act", "list"], ["query", "up"], ["cost", "budget"])


@contextlib.contextmanager
def answering(status: int, content: bytes) -> Iterator[str]:
    """The address of a server that always says the same."""

    class Server(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_POST = do_GET

        def log_message(self, format: str, *args: Any) -> None:
            """Nothing: a test is quiet."""

    with http.server.HTTPServer(("127.0.0.1", 0), Server) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def run_against(
    arguments: list[str], status: int, content: bytes, capsys: pytest.CaptureFixture[str]
) -> tuple[object, str]:
    with answering(status, content) as url, pytest.raises(SystemExit) as left:
        main.main([*arguments, "--hub", url])
    return left.value.code, capsys.readouterr().err


@pytest.mark.parametrize("arguments", QUESTIONS, ids=" ".join)
@pytest.mark.parametrize("content", [b"{}", b"[]", b"null", b"5", b"<html>"], ids=repr)
def test_an_answer_that_is_not_from_a_hub_is_a_one_line_error(
    arguments: list[str], content: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    code, words = run_against(arguments, 200, content, capsys)
    assert (code, words.count("\n")) == (main.EXIT_UNKNOWN, 1)
    assert "is this a Watchkeeper hub" in words


@pytest.mark.parametrize(
    ("arguments", "content", "place"),
    [
        ("incidents", '{"ok": true, "incidents": 5}', "`incidents`"),
        ("incidents", '{"ok": true, "incidents": [{"id": "INC-1", "opened_at": "noon"}]}', "`incidents[0].opened_at`"),
        ("nodes", '{"ok": true, "nodes": [[]]}', "`nodes[0]`"),
        ("jobs show research/llm", '{"ok": true, "job": {"id": "1", "gpus": "8"}}', "`job.gpus`"),
        ("cost report --from 0 --to 9", '{"ok": true, "lines": [{"team": "a", "money": "5"}]}', "`lines[0].money`"),
        ("query up", '{"status": "success", "data": {"resultType": "vector", "result": [5]}}', "`data.result[0]`"),
        ("top --once", '{"ok": true, "incidents": {}}', "`incidents`"),
        ("sim faults", '{"ok": true}', "the answer"),
        ("sim inject xid-79", "[]", "the answer"),
        ("slo", '{"ok": true, "slos": ' + "[" * 100_000, "not JSON"),
    ],
)
def test_an_answer_of_another_shape_is_an_error_with_its_path(
    arguments: str, content: str, place: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, words = run_against(arguments.split(), 200, content.encode(), capsys)
    assert (code, words.count("\n")) == (main.EXIT_UNKNOWN, 1)
    assert place in words
    assert "is this a Watchkeeper hub" in words


@pytest.mark.parametrize(
    "arguments", ["incidents report INC-1", "bundle --incident INC-1 -o {file}", "record {file} --from 0 --to 9"]
)
def test_a_page_that_is_not_from_a_hub_is_neither_printed_nor_saved(
    arguments: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "kept"
    code, words = run_against(arguments.format(file=file).split(), 200, b"<html>Sign in</html>", capsys)
    assert code == main.EXIT_UNKNOWN
    assert "is this a Watchkeeper hub" in words
    assert not file.exists()


@pytest.mark.parametrize("content", ["null", '{"status": "success", "data": {}}', "[" * 100_000])
def test_a_server_that_is_not_prometheus_gives_an_unknown_result(
    content: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with answering(200, content.encode()) as url, pytest.raises(SystemExit) as left:
        main.main(["doctor", "stack", "--prometheus", url])
    assert left.value.code == main.EXIT_UNKNOWN
    assert f"not read: {url}: " in capsys.readouterr().out


def test_a_field_that_an_older_hub_lacks_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    code, words = run_against(["incidents"], 200, b'{"ok": true, "incidents": []}', capsys)
    assert code == main.EXIT_UNKNOWN
    assert "has no `degraded`: the hub is older than this client" in words


def test_an_answer_without_ok_is_not_a_success(capsys: pytest.CaptureFixture[str]) -> None:
    code, words = run_against(["incidents", "ack", "INC-1"], 200, b"{}", capsys)
    assert code == main.EXIT_UNKNOWN
    assert "neither `ok` nor `status`" in words


@pytest.mark.parametrize(
    ("status", "content", "code"),
    [
        (401, b'{"ok": false, "error": "no token"}', 3),
        (403, b'{"ok": false, "error": "may not"}', 3),
        (404, b'{"ok": false, "error": "incident INC-1 not found"}', 1),
        (404, b"404 page not found", 3),
        (502, b"<html>Bad Gateway</html>", 3),
        (503, b'{"ok": false, "error": "opening"}', 3),
    ],
)
def test_exit_code_1_means_that_the_hub_answered(
    status: int, content: bytes, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_against(["incidents", "show", "INC-1"], status, content, capsys)[0] == code
