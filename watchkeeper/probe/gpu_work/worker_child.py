"""The child that works on one GPU: it takes the name of a test a line on its input, and answers in JSON lines.

`diag_children` starts it with CUDA_VISIBLE_DEVICES set to one GPU, so that a crash or a hang of CUDA costs this program
and not the command. It imports torch from the environment it runs in and nothing of the house but its own siblings.
It ends as soon as its input is closed: whoever asked is gone, and a GPU must not work for nobody.
"""

from __future__ import annotations

import importlib
import json
import os
import queue
import sys
import threading
from collections.abc import Callable, Mapping
from typing import IO, Any

from watchkeeper.probe.gpu_work import copies, matmul, memory_patterns, stress
from watchkeeper.probe.gpu_work.bench import Bench, TestSkipped

Test = Callable[[Bench, Mapping[str, Any]], dict[str, Any]]
TESTS: Mapping[str, Test] = {
    "pcie_to_gpu": copies.to_gpu,
    "pcie_from_gpu": copies.from_gpu,
    "memory_copy": copies.inside,
    "p2p": copies.between,
    "memory_patterns": memory_patterns.patterns,
    **{f"matmul_{name}": matmul.test(name) for name in matmul.FORMATS},
    "stress": stress.stress,
}


def main() -> None:
    # Whatever libraries print must not come between our lines.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    orders: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(orders,), daemon=True).start()

    def say(**words: Any) -> None:
        answers.write(json.dumps(words) + "\n")

    bench = _open(say)
    if bench is None:
        return
    while True:
        order = json.loads(orders.get())
        _run(bench, order, say)


def _listen(orders: queue.SimpleQueue[str]) -> None:
    lines: IO[str] = sys.stdin
    for line in lines:
        orders.put(line)
    os._exit(0)


def _open(say: Callable[..., None]) -> Bench | None:
    try:
        torch = importlib.import_module("torch")
    except Exception as error:  # Deliberately everything: a torch that is half installed raises anything.
        say(say="absent", why=f"torch cannot be imported: {_words(error)}")
        return None
    # `cpu` lets the tests of this program run where there is no GPU.
    device = os.environ.get("WATCHKEEPER_DIAG_DEVICE", "cuda")
    try:
        if device == "cuda":
            torch.cuda.init()
        name = torch.cuda.get_device_name(0) if device == "cuda" else device
    except Exception as error:  # Deliberately everything: this is the first call into CUDA.
        say(say="broken", why=f"CUDA does not start: {_words(error)}")
        return None
    say(say="hello", torch=str(torch.__version__), gpu=name)
    return Bench(torch, device, lambda **facts: say(say="progress", **facts))


def _run(bench: Bench, order: Mapping[str, Any], say: Callable[..., None]) -> None:
    name = str(order["test"])
    try:
        answer = TESTS[name](bench, order.get("options", {}))
    except TestSkipped as error:
        say(say="skipped", test=name, why=str(error))
    except Exception as error:  # Deliberately everything: each failure of CUDA is a result of this test.
        say(say="failed", test=name, why=_words(error))
    else:
        say(say="done", test=name, **answer)
    bench.release()


def _words(error: Exception) -> str:
    first = str(error).strip().splitlines()[:1]
    return f"{type(error).__name__}: {first[0][:300]}" if first else type(error).__name__


if __name__ == "__main__":
    main()
