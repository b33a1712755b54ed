"""Errors that no sign explains are said to be unknown, never passed over; what only looks like one is not an error."""

from __future__ import annotations

import csv
import io

import pytest

from tests.doctor.asking import ask, causes
from watchkeeper.catalogue import pack
from watchkeeper.doctor import report
from watchkeeper.doctor.report import DoctorVerdict

LOGGED = (
    "2026-08-10 05:36:05.101 ERROR [91:93] Failed to load module 8 [Handler.cpp:17]",
    "E0810 05:36:05.101 1 controller.go:12] cannot sync widget",
    "[2026-08-10 05:36:05] [ERROR] [launch.py:321] ['python', 'train.py'] exits with return code = 1",
    'time="2026-08-10T05:36:05Z" level=error msg="cannot sync widget"',
    "2026-08-10 05:36:05.1: F core/platform/widget.cc:21] Check failed: widget == 0",
    "salloc: error: Job allocation 4711 has been revoked",
    "    widget.turn()\nRuntimeError: the widget does not turn",
    "[rank3]: ValueError: no such widget",
    "TimeoutError: the widget does not answer",
    "ZeroDivisionError: division by zero",
    "[   12.500000] nvidia 0000:3b:00.0: probe failed",
    "json.decoder.JSONDecodeError: Expecting value: line 1 column 1 (char 0)",
    "[2026-08-10T05:36:05.101] error: widget of node n7 is not valid",
    "Aug 10 05:36:05 n7 slurmctld[81]: slurmctld: error: cannot sync widget",
    "n7:41:43 [2] transport/widget.cc:99 NCCL WARN Widget does not turn",
    "| Widget                    | Fail - GPU: 3                                  |",
    "vendor._bindings.vendorNotFoundError: VENDOR_ERR_NOT_FOUND",
    "Error: INSTALLATION FAILED: chart has a template that does not render",
    'Error from server (BadRequest): container "a" in pod "b" is waiting to start',
    '{"timestamp":"2026-08-10T05:36:05Z","level":"ERROR","message":"something broke"}',
    "NAME        READY   STATUS             RESTARTS   AGE\nserve-x2x   0/1     CrashLoopBackOff   9          41m",
)


@pytest.mark.parametrize("text", LOGGED)
def test_a_logged_error_that_nothing_explains_is_unknown_and_asks_for_more(text: str) -> None:
    answer = ask(text)
    assert causes(answer) == ["unknown"]
    assert answer.findings[0].confidence < 0.3
    assert answer.findings[0].actions
    assert answer.verdict is DoctorVerdict.CANNOT_TELL


@pytest.mark.parametrize(
    "text",
    [
        "2026-08-10 05:36:05 INFO 0 errors, error rate 0.0, error handling is on",
        "[2026-08-10 05:36:05] [INFO] [launch.py:9] process 4711 exits with return code = 0",
        "I0810 05:36:05.101 1 controller.go:12] retried after an error",
    ],
)
def test_a_healthy_line_about_errors_is_no_finding(text: str) -> None:
    assert ask(text).findings == ()


@pytest.mark.parametrize(
    "text",
    [
        "Aug 10 05:36:05 n7 kernel: watchdog: BUG: soft lockup - CPU#3 stuck for 22s! [python3:4711]",
        "[ 9112.4] NMI watchdog: Watchdog detected hard LOCKUP on cpu 12",
        "[ 9112.4] rcu: INFO: rcu_sched self-detected stall on CPU",
        "  Warning  Evicted  9s  kubelet  Pod ephemeral local storage usage exceeds the total limit of containers 5Gi.",
        "  Warning  Evicted  9s  kubelet  The node had condition: [DiskPressure].",
        '  Warning  Evicted  9s  kubelet  Usage of EmptyDir volume "scratch" exceeds the limit "9Gi".',
        "Health check failed. Server couldn't get a response from detokenizer for last 20 seconds.",
        "slurmd: fatal: We were configured to autodetect nvml functionality, but we weren't able to find that lib",
        "[2026-08-10T05:36:05.1] error: gres/gpu: invalid GRES core specification (4-9) on node n7",
        "RuntimeError: CUDA error: the launch timed out and was terminated",
        " 10-08-2026 05:36:05:865 [pid=7 tid=7] ERROR  cufio-fs:204 NVMe Driver not registered with nvidia-fs!!!",
        "RuntimeError: unable to open shared memory object </torch_1>\n[Errno 24] Too many open files",
        "srun: error: Task launch for 7.0 failed on node n7: Job prolog failed",
        "ibgda.cpp:7: NULL value cannot allocate mlx5dv_devx_uar",
        "[08/10/2026-05:36:05] [TRT-LLM] [RANK 0] [E] NCCL error widget.cpp:90 'invalid usage (run with NCCL'",
    ],
)
def test_a_message_without_a_catalogue_cause_names_no_gpu(text: str) -> None:
    first = ask(text).findings[0]
    assert first.cause == "unknown"
    assert not first.title.startswith(("GPU ", "A GPU ", "Memory of", "This system reports"))
    assert not {"gpu", "pci", "uuid"} & first.where.keys()


def test_a_short_text_with_a_failure_is_not_healthy() -> None:
    answer = ask("Aug 10 05:36:05 n7 widgetd[9]: could not turn the widget")
    assert causes(answer) == ["unknown"]
    assert answer.verdict is DoctorVerdict.CANNOT_TELL


@pytest.mark.parametrize(
    "text",
    [
        "Aug 10 05:36:05 n7 widgetd[9]: 12 turned, 0 failed",
        "Aug 10 05:36:05 n7 widgetd[9]: turned: 12, failed: 0",
        "2026-08-10 05:36:05 INFO trainer.py:9 could not find a profile, starting anew",
        "Aug 10 05:36:05 n7 widgetd[9]: turned\n" * 300
        + "Aug 10 05:36:06 n7 widgetd[9]: could not turn the widget once",
    ],
)
def test_no_failure_and_one_in_a_long_log_is_nothing(text: str) -> None:
    assert ask(text).verdict is DoctorVerdict.NOTHING_FOUND


def test_the_name_of_a_host_is_no_hint() -> None:
    assert causes(ask("rdma-box-1:7:9 [7] misc/cudawrap.cc:33 NCCL WARN Cuda failure 'widget error'")) == ["unknown"]


def test_a_line_that_two_signs_match_is_shown_once() -> None:
    shown = ask("[2026-08-10T05:36:05.1] error: gres/gpu: invalid GRES core specification (4-9) on node n7").findings[0]
    assert len(shown.evidence) == 1


def test_a_java_heap_is_not_the_node_s_memory() -> None:
    heap = 'Exception in thread "main" java.lang.OutOfMemoryError: Java heap space'
    assert "host_oom" not in [finding.cause for finding in ask(heap).findings if finding.confidence >= 0.4]


def test_settings_worth_a_change_are_shown_without_a_fault() -> None:
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


@pytest.mark.parametrize(
    ("text", "expected", "unwanted"),
    [
        (
            "INFO vllm engine is up\nTimeoutError: the widget does not answer",
            ("VLLM_LOGGING_LEVEL", "nvidia-smi"),
            ("NCCL_DEBUG", "kubectl", "scontrol"),
        ),
        (
            "n7:41:43 [2] transport/widget.cc:99 NCCL WARN Widget does not turn",
            ("NCCL_DEBUG", "dmesg"),
            ("VLLM_LOGGING_LEVEL", "kubectl", "scontrol"),
        ),
        (
            "slurmctld: error: cannot sync widget",
            ("scontrol show job", "dmesg"),
            ("NCCL_DEBUG", "journalctl -u slurmd"),
        ),
        ("[   12.500000] widget 0000:3b:00.0: failed to turn", ("nvidia-smi",), ("dmesg", "NCCL_DEBUG")),
    ],
)
def test_the_inputs_to_collect_depend_on_the_given_input(
    text: str, expected: tuple[str, ...], unwanted: tuple[str, ...]
) -> None:
    [finding] = ask(text).findings
    assert finding.cause == "unknown"
    commands = " ; ".join(step.command or step.do for step in finding.actions)
    assert [part for part in expected if part not in commands] == []
    assert [part for part in unwanted if part in commands] == []


def test_every_kind_of_which_the_steps_speak_exists() -> None:
    kinds = {row["kind"] for row in csv.DictReader(io.StringIO(pack.text_of("input_kinds.csv")))}
    rows = list(csv.DictReader(io.StringIO(pack.text_of(report.INPUTS_FILE))))
    spoken = {begin for row in rows for begin in f"{row['only']} {row['unless']}".split()}
    assert {begin for begin in spoken if not any(kind.startswith(begin) for kind in kinds)} == set()
