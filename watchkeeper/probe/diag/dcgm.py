"""Run NVIDIA's diagnostic, `dcgmi diag -j`, and convert its output: each test's name gets the prefix `dcgm.`.

`runner` runs it where it is installed. DCGM 3 and 4 write the same tree but name a GPU differently: 3 has `gpu_id`
or `gpu_ids` as text, 4 has `entity_group` and `entity_id`, and an overall `test_summary`.
"""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from watchkeeper.model.diag import DiagVerdict, TestResult
from watchkeeper.readers import json_facts

PROGRAM = "dcgmi"
# The test name of the result when dcgmi returns no diagnostic.
NO_DIAGNOSTIC = "dcgm"
TOP_KEYS = ("DCGM Diagnostic", "DCGM GPU Diagnostic")
# NVIDIA documents 2 s, 2 min, 30 min and 1 to 2 hours for the levels.
TIMEOUT_SECONDS = {1: 120.0, 2: 900.0, 3: 5400.0, 4: 4 * 3600.0}
MAX_BYTES = 16 << 20
VERDICTS = {"pass": DiagVerdict.PASS, "warn": DiagVerdict.WARN, "warning": DiagVerdict.WARN, "fail": DiagVerdict.FAIL}


def run_dcgmi(command: Sequence[str], timeout_seconds: float) -> tuple[str | None, str]:
    """The output, or None and the reason. The exit status is ignored: dcgmi sets it also when a test fails."""
    with tempfile.TemporaryFile() as output:
        try:
            child = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.DEVNULL, start_new_session=True
            )
        except OSError as error:
            return None, f"{command[0]}: {error.strerror}"
        deadline = time.monotonic() + timeout_seconds
        try:
            while child.poll() is None and time.monotonic() < deadline:
                time.sleep(0.05)
            has_timed_out = child.poll() is None
        finally:
            # Also on Ctrl-C: nv-hostengine stops a run whose client has exited.
            child.kill()
            child.wait()
        if has_timed_out:
            return None, f"dcgmi diag timed out after {timeout_seconds:g} s"
        output.seek(0)
        return output.read(MAX_BYTES).decode("utf-8", "replace"), ""


def parse_output(text: str, uuids: Mapping[int, str]) -> tuple[TestResult, ...]:
    """Results from dcgmi's JSON; `uuids` maps index to UUID. Other output gives one skipped result that quotes it."""
    # dcgmi may write a line about its options before the JSON.
    start = text.find("{")
    try:
        plain = json.loads(text[start:]) if start >= 0 else None
    except ValueError:
        plain = None
    top = json_facts.mapping(plain)
    tree = next((json_facts.mapping(top, name) for name in TOP_KEYS if name in top), None)
    if tree is None or "runtime_error" in tree:
        reason = str((tree or {}).get("runtime_error") or " ".join(text.split()))[:300]
        why = f"dcgmi returned no diagnostic: {reason or 'empty output'}"
        return (TestResult(NO_DIAGNOSTIC, None, DiagVerdict.SKIP, why),)
    return tuple(_results(tree, uuids))


def _results(tree: Mapping[str, Any], uuids: Mapping[int, str]) -> Iterator[TestResult]:
    for category in _mappings(tree, "test_categories"):
        for test in _mappings(category, "tests"):
            name = "dcgm." + re.sub(r"[^a-z0-9]+", "_", str(test.get("name", "")).lower()).strip("_")
            for row in _mappings(test, "results"):
                verdict = VERDICTS.get(str(row.get("status", "")).lower(), DiagVerdict.SKIP)
                for gpu in _gpus_of_row(row, uuids):
                    yield TestResult(name, gpu, verdict, _reason(row))


def _mappings(parent: Mapping[str, Any], name: str) -> Iterator[Mapping[str, Any]]:
    return (item for item in json_facts.items(parent, name) if isinstance(item, Mapping))


def _reason(row: Mapping[str, Any]) -> str:
    texts: list[str] = []
    for name in ("warnings", "info"):
        value = row.get(name)
        for part in value if isinstance(value, list) else [value]:
            text = part.get("warning") if isinstance(part, Mapping) else part
            texts += [str(text).strip()] if text else []
    return "; ".join(texts)[:500] or f"dcgmi status: {row.get('status', 'none')}"


def _gpus_of_row(row: Mapping[str, Any], uuids: Mapping[int, str]) -> list[str | None]:
    """The GPUs of a row; None stands for the node."""
    group = row.get("entity_group")
    if group is not None and group != "GPU":
        return [None]
    entity = row.get("entity_id", row.get("gpu_id", row.get("gpu_ids")))
    numbers = [int(number) for number in re.findall(r"\d+", str(entity))] if entity is not None else []
    return [uuids.get(number, f"GPU {number}") for number in numbers] or [None]
