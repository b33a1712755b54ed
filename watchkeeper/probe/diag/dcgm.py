"""NVIDIA's own diagnostic, `dcgmi diag -j`, as results of ours: each test's name has `dcgm.` before it.

`diag_run` runs it where it is installed. DCGM 3 and 4 write the tree alike and name a GPU differently: 3 has `gpu_id`
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
# The name of a result that says why there are none.
NO_ANSWER = "dcgm"
TOPS = ("DCGM Diagnostic", "DCGM GPU Diagnostic")
# NVIDIA's own times are 2 s, 2 min, 30 min and 1 to 2 hours for the levels.
LIMIT_SECONDS = {1: 120.0, 2: 900.0, 3: 5400.0, 4: 4 * 3600.0}
MAX_BYTES = 16 << 20
VERDICTS = {"pass": DiagVerdict.PASS, "warn": DiagVerdict.WARN, "warning": DiagVerdict.WARN, "fail": DiagVerdict.FAIL}


def arguments(level: int, gpus: Sequence[int], *, program: str = PROGRAM) -> list[str]:
    return [program, "diag", "-r", str(level), "-j", "-i", ",".join(map(str, gpus))]


def run(command: Sequence[str], limit_seconds: float) -> tuple[str | None, str]:
    """Its output, or None and why there is none. dcgmi exits with another status whenever a test has failed."""
    with tempfile.TemporaryFile() as output:
        try:
            child = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.DEVNULL, start_new_session=True
            )
        except OSError as error:
            return None, f"{command[0]}: {error.strerror}"
        until = time.monotonic() + limit_seconds
        try:
            while child.poll() is None and time.monotonic() < until:
                time.sleep(0.05)
            is_late = child.poll() is None
        finally:
            # Also when somebody presses Ctrl-C: nv-hostengine ends a run whose client is gone.
            child.kill()
            child.wait()
        if is_late:
            return None, f"dcgmi diag has not ended within {limit_seconds:g} s"
        output.seek(0)
        return output.read(MAX_BYTES).decode("utf-8", "replace"), ""


def read(text: str, uuids: Mapping[int, str]) -> tuple[TestResult, ...]:
    """Results of dcgmi's JSON; `uuids` names GPUs by index. What is no diagnostic is one result that quotes it."""
    # dcgmi may write a line about its options before the JSON.
    start = text.find("{")
    try:
        plain = json.loads(text[start:]) if start >= 0 else None
    except ValueError:
        plain = None
    top = json_facts.mapping(plain)
    tree = next((json_facts.mapping(top, name) for name in TOPS if name in top), None)
    if tree is None or "runtime_error" in tree:
        said = str((tree or {}).get("runtime_error") or " ".join(text.split()))[:300]
        return (TestResult(NO_ANSWER, None, DiagVerdict.SKIP, f"dcgmi gave no diagnostic: {said or 'nothing'}"),)
    return tuple(_results(tree, uuids))


def _results(tree: Mapping[str, Any], uuids: Mapping[int, str]) -> Iterator[TestResult]:
    for category in _tables(tree, "test_categories"):
        for test in _tables(category, "tests"):
            name = "dcgm." + re.sub(r"[^a-z0-9]+", "_", str(test.get("name", "")).lower()).strip("_")
            for row in _tables(test, "results"):
                for gpu in _gpus(row, uuids):
                    yield TestResult(name, gpu, _verdict(row), _why(row))


def _tables(found: Mapping[str, Any], name: str) -> Iterator[Mapping[str, Any]]:
    return (item for item in json_facts.items(found, name) if isinstance(item, Mapping))


def _verdict(row: Mapping[str, Any]) -> DiagVerdict:
    return VERDICTS.get(str(row.get("status", "")).lower(), DiagVerdict.SKIP)


def _why(row: Mapping[str, Any]) -> str:
    said: list[str] = []
    for name in ("warnings", "info"):
        value = row.get(name)
        for part in value if isinstance(value, list) else [value]:
            words = part.get("warning") if isinstance(part, Mapping) else part
            said += [str(words).strip()] if words else []
    return "; ".join(said)[:500] or f"dcgmi says {row.get('status', 'nothing')}"


def _gpus(row: Mapping[str, Any], uuids: Mapping[int, str]) -> list[str | None]:
    """The GPUs that a row is about; None where it is the node."""
    group = row.get("entity_group")
    if group is not None and group != "GPU":
        return [None]
    named = row.get("entity_id", row.get("gpu_id", row.get("gpu_ids")))
    numbers = [int(number) for number in re.findall(r"\d+", str(named))] if named is not None else []
    return [uuids.get(number, f"GPU {number}") for number in numbers] or [None]
