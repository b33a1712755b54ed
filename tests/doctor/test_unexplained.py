"""Errors that no sign explains are said to be unknown, never passed over; what only looks like one is not an error."""

from __future__ import annotations

import pytest

from tests.doctor.asking import ask, causes
from watchkeeper.diagnose.doctor.report import Verdict


@pytest.mark.parametrize(
    "text",
    [
        "2026-08-10 05:36:05.101 ERROR [91:93] Failed to load module 8 [Handler.cpp:17]",
        "E0810 05:36:05.101 1 controller.go:12] cannot sync widget",
        "[2026-08-10 05:36:05] [ERROR] [launch.py:321] ['python', 'train.py'] exits with return code = 1",
        'time="2026-08-10T05:36:05Z" level=error msg="cannot sync widget"',
        "2026-08-10 05:36:05.1: F core/platform/widget.cc:21] Check failed: widget == 0",
        "salloc: error: Job allocation 4711 has been revoked",
        "    widget.turn()\nRuntimeError: the widget does not turn",
        "[rank3]: ValueError: no such widget",
    ],
)
def test_a_logged_error_that_nothing_explains_is_unknown_and_asks_for_more(text: str) -> None:
    answer = ask(text)
    assert causes(answer) == ["unknown"]
    assert answer.findings[0].confidence < 0.3
    assert answer.findings[0].actions
    assert answer.verdict is Verdict.CANNOT_TELL


@pytest.mark.parametrize(
    "text",
    [
        "2026-08-10 05:36:05 INFO 0 errors, error rate 0.0, error handling is on",
        "[2026-08-10 05:36:05] [INFO] [launch.py:9] process 4711 exits with return code = 0",
        "I0810 05:36:05.101 1 controller.go:12] retried after an error",
    ],
)
def test_a_healthy_line_that_speaks_of_errors_is_nothing(text: str) -> None:
    assert ask(text).findings == ()


def test_a_heap_of_java_is_not_the_node_s_memory() -> None:
    heap = 'Exception in thread "main" java.lang.OutOfMemoryError: Java heap space'
    assert "host_oom" not in [finding.cause for finding in ask(heap).findings if finding.confidence >= 0.4]


def test_settings_worth_a_change_are_said_even_when_nothing_is_wrong() -> None:
    answer = ask("export NCCL_ALGO=Ring\nexport NCCL_NVLS_ENABLE=0\nexport TORCH_FR_BUFFER_SIZE=0\n")
    assert answer.findings == ()
    assert [note.partition(":")[0] for note in answer.notes] == [
        "NCCL_ALGO=Ring",
        "NCCL_NVLS_ENABLE=0",
        "TORCH_FR_BUFFER_SIZE=0",
    ]


def test_what_is_known_to_be_harmless_is_explained() -> None:
    answer = ask("nv-fabricmanager[9]: query NVSwitch failed with error:WARNING Nothing to do [NV_WARN_NOTHING_TO_DO]")
    assert answer.findings == ()
    assert any("no NVSwitch" in note for note in answer.notes)


def test_one_lost_link_is_less_than_a_port_that_flaps() -> None:
    line = "Aug 10 05:36:0{} n1 kernel: mlx5_core 0000:9a:00.0 ibp1s0: Link down\n"
    once, often = ask(line.format(1)), ask(line.format(1) + line.format(5) + line.format(9))
    assert once.findings[0].cause == often.findings[0].cause == "ib_link_degraded"
    assert once.findings[0].confidence < 0.5 < often.findings[0].confidence
    assert "3 times" in often.findings[0].why
