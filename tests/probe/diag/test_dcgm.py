"""`dcgmi diag -j`, in the shapes of DCGM 3 and 4, from a stand-in program."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.probe.diag.standins import NOON, UUID, options
from watchkeeper.model.diag import DiagOutcome, DiagVerdict
from watchkeeper.probe.diag import dcgm, runner

UUIDS = {0: "GPU-a", 1: "GPU-b"}


def tree(top: str, *results: dict[str, Any], name: str = "PCIe") -> str:
    tests = [{"name": name, "results": list(results)}]
    return json.dumps({top: {"test_categories": [{"category": "Integration", "tests": tests}]}})


def test_dcgm_4_output_has_entities_and_warnings() -> None:
    warning = {"warning": "Detected 3 replays", "error_id": 40}
    text = tree(
        "DCGM Diagnostic",
        {"entity_group": "GPU", "entity_id": 0, "status": "Pass", "info": ["GPU to Host bandwidth: 25 GB/s"]},
        {"entity_group": "GPU", "entity_id": 1, "status": "Fail", "warnings": [warning]},
        {"entity_group": "CPU", "entity_id": 0, "status": "Skip"},
    )
    results = dcgm.parse_output(text, UUIDS)
    assert [(result.test, result.gpu, result.verdict) for result in results] == [
        ("dcgm.pcie", "GPU-a", DiagVerdict.PASS),
        ("dcgm.pcie", "GPU-b", DiagVerdict.FAIL),
        ("dcgm.pcie", None, DiagVerdict.SKIP),
    ]
    assert (results[0].why, results[1].why) == ("GPU to Host bandwidth: 25 GB/s", "Detected 3 replays")


def test_dcgm_3_output_has_gpus_as_text_and_rows_without_a_gpu() -> None:
    row = {"gpu_ids": "0,1", "status": "Warn", "warnings": "Persistence mode is off"}
    results = dcgm.parse_output(tree("DCGM GPU Diagnostic", row, {"status": "Pass"}, name="GPU Memory"), UUIDS)
    assert [(result.test, result.gpu, result.verdict) for result in results] == [
        ("dcgm.gpu_memory", "GPU-a", DiagVerdict.WARN),
        ("dcgm.gpu_memory", "GPU-b", DiagVerdict.WARN),
        ("dcgm.gpu_memory", None, DiagVerdict.PASS),
    ]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Error: unable to establish a connection to the specified host: localhost",
        '{"DCGM Diagnostic": {"runtime_error": "The test is already running"}}',
        '{"DCGM Diagnostic": ',
        "[1, 2]",
    ],
)
def test_output_that_is_no_diagnostic_is_one_skipped_result(text: str) -> None:
    (result,) = dcgm.parse_output(text, UUIDS)
    assert (result.test, result.verdict) == ("dcgm", DiagVerdict.SKIP)


@pytest.mark.parametrize("odd", [{"test_categories": 3}, {"test_categories": [{"tests": [4, {"results": "x"}]}]}, []])
def test_a_tree_of_another_shape_is_read_without_an_exception(odd: object) -> None:
    assert dcgm.parse_output(json.dumps({"DCGM Diagnostic": odd}), UUIDS) == ()


def fake_dcgmi(folder: Path, body: str) -> str:
    program = folder / "dcgmi"
    program.write_text(f"#!{sys.executable}\nimport sys, time\n{body}\n")
    program.chmod(0o755)
    return str(program)


def test_dcgmi_replaces_torch_where_it_is_installed(tmp_path: Path) -> None:
    text = tree("DCGM Diagnostic", {"entity_group": "GPU", "entity_id": 0, "status": "Fail"}, name="memory")
    program = fake_dcgmi(
        tmp_path, f"assert sys.argv[1:] == 'diag -r 2 -j -i 0'.split()\nprint({text!r}); sys.exit(226)"
    )
    chosen = options(tmp_path, "crash", "memory_copy", engine=runner.AUTO, dcgmi=program)
    report = runner.run(2, now=NOON, options=chosen)
    assert report.exit is DiagOutcome.FAILED
    assert [(result.test, result.gpu) for result in report.results if result.verdict is DiagVerdict.FAIL] == [
        ("dcgm.memory", f"{UUID}0")
    ]


def test_torch_is_used_if_dcgmi_returns_no_diagnostic(tmp_path: Path) -> None:
    program = fake_dcgmi(tmp_path, "print('cannot connect to nv-hostengine'); sys.exit(1)")
    report = runner.run(2, now=NOON, options=options(tmp_path, engine=runner.AUTO, dcgmi=program))
    verdicts = {result.test: result.verdict for result in report.results}
    assert (verdicts["dcgm"], verdicts["matmul_bf16"]) == (DiagVerdict.SKIP, DiagVerdict.PASS)


def test_a_selected_dcgmi_without_a_diagnostic_means_cannot_tell(tmp_path: Path) -> None:
    chosen = options(tmp_path, engine=runner.DCGM, dcgmi=str(tmp_path / "absent"))
    report = runner.run(2, now=NOON, options=chosen)
    assert report.exit is DiagOutcome.CANNOT_TELL
    assert [result.why for result in report.results if result.test == "gpu_work"] == [
        f"{tmp_path / 'absent'}: No such file or directory"
    ]


def test_a_dcgmi_that_hangs_is_killed_at_its_timeout(tmp_path: Path) -> None:
    program = fake_dcgmi(tmp_path, "time.sleep(600)")
    assert dcgm.run_dcgmi([program], 0.3) == (None, "dcgmi diag timed out after 0.3 s")
