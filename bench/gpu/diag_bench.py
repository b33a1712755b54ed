"""On a real GPU: results of the tests of `watchkeeper diag`, detection of planted errors, and the time of level 2.

`python bench/gpu/diag_bench.py` prints one JSON object. The memory test is compared with the memory copy of the same
run. Each planted error is one flipped bit.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from watchkeeper.kit import clock
from watchkeeper.model import diag
from watchkeeper.probe.diag import runner
from watchkeeper.probe.gpu_work import worker_child
from watchkeeper.probe.gpu_work.bench import Bench

PLANTED_WORD = 123_456_789_012


def measure_tests(bench: Bench) -> dict[str, Any]:
    results = {}
    for name, test in worker_child.TESTS.items():
        if name in ("p2p", "stress"):
            continue
        start = time.perf_counter()
        try:
            answer = test(bench, {})
        except Exception as error:  # Deliberately everything: an unsupported format is also a result.
            answer = {"error": f"{type(error).__name__}: {error}"}
        bench.release_memory()
        results[name] = answer | {"wall_seconds": round(time.perf_counter() - start, 2)}
    return results


def measure_planted(bench: Bench) -> dict[str, Any]:
    """The problems that each test reports for one flipped bit."""
    flip = {"pattern": "random", "word": PLANTED_WORD, "bit": 17}
    problems = {"memory_patterns": worker_child.TESTS["memory_patterns"](bench, {"plant": flip})["problems"]}
    bench.release_memory()
    for where in ("repeat", "sample", "exact"):
        problems[f"matmul_bf16 {where}"] = worker_child.TESTS["matmul_bf16"](bench, {"plant": where})["problems"]
    problems["stress"] = worker_child.TESTS["stress"](bench, {"seconds": 4, "plant": True})["problems"]
    return problems


def run_level_2() -> dict[str, Any]:
    """Run level 2 as the command does, including the start of child processes and torch."""
    report = runner.run(2, now=clock.ScaledClock().now(), options=runner.DiagOptions(engine=runner.TORCH))
    not_passed = [
        f"{result.test}: {result.why}"
        for result in report.results
        if result.verdict not in (diag.DiagVerdict.PASS, diag.DiagVerdict.SKIP)
    ]
    return {"verdict": report.exit, "seconds": report.seconds, "not_passed": not_passed}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--stress", type=float, default=10.0, help="seconds of full load")
    arguments = options.parse_args()
    level_2 = run_level_2()
    import torch

    start = time.perf_counter()
    bench = Bench(torch, "cuda", lambda **_: None)
    torch.cuda.init()
    report: dict[str, Any] = {"gpu": torch.cuda.get_device_name(0), "torch": torch.__version__, "r2": level_2}
    report["tests"] = measure_tests(bench)
    copy_rate = report["tests"]["memory_copy"].get("measured")
    patterns_rate = report["tests"]["memory_patterns"].get("measured")
    report["memory_patterns_share_of_copy"] = patterns_rate / copy_rate if patterns_rate and copy_rate else None
    report["planted"] = measure_planted(bench)
    report["stress"] = worker_child.TESTS["stress"](bench, {"seconds": arguments.stress})
    report["wall_seconds"] = time.perf_counter() - start
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
