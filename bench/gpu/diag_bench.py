"""On a real GPU: what the tests of `watchkeeper diag` reach, that they find what is planted, and how long r2 takes.

`python bench/gpu/diag_bench.py` prints one JSON object. The memory test is held against the copy that the same run
measures. Each planted fault is one flipped bit.
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


def tests(bench: Bench) -> dict[str, Any]:
    found = {}
    for name, test in worker_child.TESTS.items():
        if name in ("p2p", "stress"):
            continue
        start = time.perf_counter()
        try:
            answer = test(bench, {})
        except Exception as error:  # Deliberately everything: a format that this GPU lacks is a line of the table.
            answer = {"error": f"{type(error).__name__}: {error}"}
        bench.release_memory()
        found[name] = answer | {"wall_seconds": round(time.perf_counter() - start, 2)}
    return found


def planted(bench: Bench) -> dict[str, Any]:
    """What each test says about one flipped bit."""
    flip = {"pattern": "random", "word": PLANTED_WORD, "bit": 17}
    found = {"memory_patterns": worker_child.TESTS["memory_patterns"](bench, {"plant": flip})["problems"]}
    bench.release_memory()
    for where in ("repeat", "sample", "exact"):
        found[f"matmul_bf16 {where}"] = worker_child.TESTS["matmul_bf16"](bench, {"plant": where})["problems"]
    found["stress"] = worker_child.TESTS["stress"](bench, {"seconds": 4, "plant": True})["problems"]
    return found


def whole_run() -> dict[str, Any]:
    """Level 2 as the command runs it, children and start of torch included."""
    report = runner.run(2, now=clock.ScaledClock().now(), options=runner.DiagOptions(engine=runner.TORCH))
    bad = [
        f"{one.test}: {one.why}"
        for one in report.results
        if one.verdict not in (diag.DiagVerdict.PASS, diag.DiagVerdict.SKIP)
    ]
    return {"verdict": report.exit, "seconds": report.seconds, "not_passed": bad}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--stress", type=float, default=10.0, help="seconds of full load")
    chosen = options.parse_args()
    whole = whole_run()
    import torch

    start = time.perf_counter()
    bench = Bench(torch, "cuda", lambda **_: None)
    torch.cuda.init()
    report: dict[str, Any] = {"gpu": torch.cuda.get_device_name(0), "torch": torch.__version__, "r2": whole}
    report["tests"] = tests(bench)
    copy = report["tests"]["memory_copy"].get("measured")
    patterns = report["tests"]["memory_patterns"].get("measured")
    report["memory_patterns_share_of_copy"] = patterns / copy if patterns and copy else None
    report["planted"] = planted(bench)
    report["stress"] = worker_child.TESTS["stress"](bench, {"seconds": chosen.stress})
    report["wall_seconds"] = time.perf_counter() - start
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
