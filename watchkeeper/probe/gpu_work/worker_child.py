"""Child process that runs tests on one GPU: it reads requests from standard input and writes JSON lines.

`runner` starts it with CUDA_VISIBLE_DEVICES set to one GPU, so that a crash or hang of CUDA does not affect the
command. It imports torch from its environment and nothing from the product except this package, and exits when its
input is closed.
"""

from __future__ import annotations

import importlib
import json
import os
import queue
import sys
import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import IO, Any

from watchkeeper.probe.gpu_work import copies, matmul, memory_patterns
from watchkeeper.probe.gpu_work.bench import Bench, TestSkipped

Test = Callable[[Bench, Mapping[str, Any]], dict[str, Any]]
TESTS: Mapping[str, Test] = {
    "pcie_to_gpu": partial(copies.copy_over_pcie, is_to_gpu=True),
    "pcie_from_gpu": partial(copies.copy_over_pcie, is_to_gpu=False),
    "memory_copy": copies.copy_inside_gpu,
    "p2p": copies.copy_between_gpus,
    "memory_patterns": memory_patterns.run_patterns,
    **{f"matmul_{name}": partial(matmul.multiply_matrices, number_format=row) for name, row in matmul.FORMATS.items()},
    "stress": matmul.stress,
}


def main() -> None:
    # Output of libraries goes to standard error, so that it does not mix with our lines.
    output = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    requests: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=_read_requests, args=(requests,), daemon=True).start()

    def send(**message: Any) -> None:
        output.write(json.dumps(message) + "\n")

    bench = _open_bench(send)
    if bench is None:
        return
    while True:
        _run_test(bench, json.loads(requests.get()), send)


def _read_requests(requests: queue.SimpleQueue[str]) -> None:
    lines: IO[str] = sys.stdin
    for line in lines:
        requests.put(line)
    os._exit(0)


def _open_bench(send: Callable[..., None]) -> Bench | None:
    try:
        torch = importlib.import_module("torch")
    except Exception as error:  # Deliberately everything: a broken installation of torch can raise anything.
        send(type="no_torch", why=f"torch cannot be imported: {_describe_error(error)}")
        return None
    # `cpu` is for our own tests without a GPU.
    device = os.environ.get("WATCHKEEPER_DIAG_DEVICE", "cuda")
    try:
        if device == "cuda":
            torch.cuda.init()
        name = torch.cuda.get_device_name(0) if device == "cuda" else device
    except Exception as error:  # Deliberately everything: the first CUDA call can raise anything.
        send(type="start_failed", why=f"CUDA does not start: {_describe_error(error)}")
        return None
    send(type="ready", torch=str(torch.__version__), gpu=name)
    return Bench(torch, device, lambda **facts: send(type="progress", **facts))


def _run_test(bench: Bench, request: Mapping[str, Any], send: Callable[..., None]) -> None:
    name = str(request["test"])
    try:
        result = TESTS[name](bench, request.get("options", {}))
    except TestSkipped as error:
        send(type="skipped", test=name, why=str(error))
    except Exception as error:  # Deliberately everything: any CUDA failure is a result of this test.
        send(type="failed", test=name, why=_describe_error(error))
    else:
        send(type="done", test=name, **result)
    bench.release_memory()


def _describe_error(error: Exception) -> str:
    first_line = str(error).strip().splitlines()[:1]
    return f"{type(error).__name__}: {first_line[0][:300]}" if first_line else type(error).__name__


if __name__ == "__main__":
    main()
