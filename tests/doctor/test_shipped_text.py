"""The same text, as shippers, mail and web pages hand it on: the doctor's answer must not change."""

from __future__ import annotations

import html
import io
import json
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.doctor.asking import ask, causes
from watchkeeper.readers.logs import log_text, shipped_text

KERNEL = """[ 812.100001] NVRM: GPU at PCI:0000:4e:00: GPU-0a1b2c3d-1111-2222-3333-444455556666
[ 812.100002] NVRM: Xid (PCI:0000:4e:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.
[ 812.200000] NVRM: GPU 0000:4e:00.0: GPU has fallen off the bus."""
PORTS = """CA 'mlx5_3'
\tCA type: MT4129
\tNumber of ports: 1
\tPort 1:
\t\tState: Down
\t\tPhysical state: Polling
\t\tRate: 10
\t\tLink layer: InfiniBand"""
FABRIC = "fabric manager NVIDIA GPU driver interface version 570.10.01 don't match with driver version 570.10.02."
QUEUE = "gpu01:11:12 [5] misc/ibvwrap.cc:262 NCCL WARN Call to ibv_modify_qp failed with error No such device"
TEXTS = {
    "gpu_fell_off_bus": KERNEL,
    "nccl_ib_link_error": PORTS,
    "fabric_manager_down": FABRIC,
    "nccl_ib_gid": QUEUE,
}


def before(prefix: str) -> Callable[[str], str]:
    return lambda text: "\n".join(prefix + line for line in text.split("\n"))


def each(wrap: Callable[[str], str]) -> Callable[[str], str]:
    return lambda text: "\n".join(map(wrap, text.split("\n")))


SHIPPERS: dict[str, Callable[[str], str]] = {
    "quoted twice": lambda text: before("> > ")(text + "\n\n"),
    "fenced": lambda text: f"My node is gone:\n\n```\n{text}\n```\n",
    "escaped": html.escape,
    "web page": lambda text: "<pre>" + html.escape(text).replace("\n", "<br/>\n") + "</pre>",
    "docker": each(lambda line: json.dumps({"log": line + "\n", "stream": "stderr", "time": "2026-08-10T05:36:05.1Z"})),
    "journald": each(
        lambda line: json.dumps({"__REALTIME_TIMESTAMP": "1786340165101234", "_HOSTNAME": "gpu07", "MESSAGE": line})
    ),
    "json lines": each(lambda line: json.dumps({"ts": 1786340165.1, "level": "info", "msg": line, "rank": 3})),
    "container runtime": before("2026-08-10T05:36:05.101234567Z stderr F "),
    "pods": before("[pod/trainer-0/main] "),
    "compose": before("trainer-1  | "),
    "ray": before("(RayWorker pid=4711, ip=10.0.0.7) "),
    "vllm": before("(VllmWorker rank=3 pid=4711) ERROR 08-10 05:36:05 [executor.py:470] "),
    "loguru": before("2026-08-10 05:36:05.101 | INFO     | node:check:42 - "),
    "absl": before("I0810 05:36:05.101234 140000 launcher.py:96] "),
    "torchrun": before("[default3]:"),
    "windows": lambda text: text.replace("\n", "\r\n"),
    "indented": before("        "),
}


@pytest.mark.parametrize("cause", TEXTS)
@pytest.mark.parametrize("shipper", SHIPPERS)
def test_the_answer_is_the_same_however_the_text_was_shipped(shipper: str, cause: str) -> None:
    assert causes(ask(SHIPPERS[shipper](TEXTS[cause])))[:1] == [cause]


def test_a_line_of_the_journal_keeps_its_node_its_time_and_its_number() -> None:
    answer = ask(SHIPPERS["journald"](KERNEL))
    event = next(event for event in answer.events if event["kind"] == "xid")
    assert (event["node"], event["line"], event["at"]) == ("gpu07", 2, "2026-08-10T05:36:05.101234+00:00")


def test_what_else_a_structured_line_says_is_read_as_well() -> None:
    line = json.dumps(
        {"level": "error", "msg": "allocation failed", "error": "CUDA out of memory. Tried to allocate 2.00 GiB"}
    )
    assert causes(ask(line + "\n" + line))[:1] == ["cuda_oom"]


def test_an_object_of_kubernetes_is_a_document_and_no_log_line() -> None:
    status = {"kind": "Status", "apiVersion": "v1", "message": "pods is forbidden"}
    assert shipped_text.find_unwrapper(json.dumps(status).encode()) is None


def test_a_log_without_wrapping_is_not_changed() -> None:
    assert shipped_text.find_unwrapper(KERNEL.encode()) is None
    assert shipped_text.strip_prefixes(KERNEL) == KERNEL


def test_columns_before_a_bar_are_no_prefix_of_a_shipper() -> None:
    table = "fans | ok\npower | ok\nlinks | down\ntemperature | ok\n"
    assert shipped_text.strip_prefixes(table) == table


@given(st.lists(st.text(st.characters(blacklist_characters="\n"), max_size=30), max_size=20), st.integers(1, 50))
def test_opened_lines_stay_one_to_one_whatever_the_blocks(lines: list[str], size: int) -> None:
    raw = "\n".join(json.dumps({"log": line}) for line in lines).encode()

    class Slow:
        at = 0

        def read(self, limit: int, /) -> bytes:
            piece = raw[self.at : self.at + size]
            self.at += size
            return piece

    opened = shipped_text.UnwrappedStream(Slow(), shipped_text.find_unwrapper(b'{"log": "x"}\n') or bytes)
    out = b"".join(iter(lambda: opened.read(size), b""))
    assert out.count(b"\n") == raw.count(b"\n")


def telling(stream: log_text.ByteStream, wrapping: log_text.Wrapping | None) -> list[tuple[int, str, str, str]]:
    words = {b"error", b"more"}
    matching_lines = log_text.find_lines(stream, words, lambda _, words_of_line: words_of_line, wrapping=wrapping)
    return [(line.number, line.text, line.preceding, line.following) for line in matching_lines]


# Without their digits the two are alike outside, and only one of them says "error" or "more" inside.
ALIKE = (
    ('{"log": "x", "more": ""}', '{"log": "x", "more": "7"}'),
    ('{"log": "x", "more": []}', '{"log": "x", "more": [7]}'),
    ('{"log": "an \\u0065rror"}', '{"log": "an \\u0035rror"}'),
    ('{"log": "x", "12": "", "more": ""}', '{"log": "x", "12": "", "more": "7"}'),
)
VALUES = st.sampled_from(
    ["", "7", "42", "error", "an error 9", "\x1b[31merror\x1b[0m", "é", 'an "error"', [], [1], {}, 8]
)
FIELDS = st.dictionaries(st.sampled_from(["msg", "level", "ts", "error", "rank", "__CURSOR", "12", "more"]), VALUES)


@given(st.lists(FIELDS, max_size=12), st.booleans())
def test_lines_of_json_that_are_opened_only_where_needed_say_the_same(
    objects: list[dict[str, object]], is_escaped: bool
) -> None:
    raw = "\n".join(json.dumps(entry | {"log": "x"}, ensure_ascii=is_escaped) for entry in objects).encode()
    opened = shipped_text.UnwrappedStream(io.BytesIO(raw), shipped_text.unwrap_json)
    assert telling(io.BytesIO(raw), shipped_text.JsonLines()) == telling(opened, None)


@pytest.mark.parametrize("pair", ALIKE)
@pytest.mark.parametrize("turned", [False, True])
def test_lines_that_are_alike_outside_are_told_apart_where_they_differ_inside(
    pair: tuple[str, str], turned: bool
) -> None:
    raw = "\n".join(reversed(pair) if turned else pair).encode()
    opened = shipped_text.UnwrappedStream(io.BytesIO(raw), shipped_text.unwrap_json)
    matching_lines = telling(io.BytesIO(raw), shipped_text.JsonLines())
    assert matching_lines == telling(opened, None)
    assert len(matching_lines) == 1
