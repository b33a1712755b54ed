"""Child process for one rank of the fabric test: it joins the other ranks through torch.distributed and measures.

Ranks run all-reduces of growing size with a known sum, and then exchange data with each other rank in turn
(`pairwise.schedule_rounds`). Rank 0 gathers and sends all rates.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

from watchkeeper.probe.fabric import pairwise

REPEATS = 5


def main() -> None:
    output = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    threading.Thread(target=_exit_with_parent, daemon=True).start()

    def send(**message: Any) -> None:
        output.write(json.dumps(message) + "\n")

    try:
        torch = importlib.import_module("torch")
        distributed = importlib.import_module("torch.distributed")
    except Exception as error:  # Deliberately everything: a broken installation of torch can raise anything.
        send(type="no_torch", why=f"torch cannot be imported: {error}"[:300])
        return
    try:
        rank = RankWorker(torch, distributed, json.loads(sys.argv[1]))
        rank.join()
        send(type="joined", rank=rank.rank)
        rank.measure(send)
    except Exception as error:  # Deliberately everything: any network failure is a result of this rank.
        text = str(error).strip().splitlines()[0][:300] if str(error) else ""
        send(type="failed", why=f"{type(error).__name__}: {text}")
        output.flush()
        os._exit(1)
    send(type="end")
    output.flush()
    # Skip torch's cleanup, which may wait for a rank that has exited.
    os._exit(0)


def _exit_with_parent() -> None:
    sys.stdin.read()
    os._exit(0)


class RankWorker:
    """One rank; `launcher` creates its `options` from a FabricPlan."""

    def __init__(self, torch: Any, distributed: Any, options: Mapping[str, Any]) -> None:
        self._torch, self._dist, self._options = torch, distributed, options
        self.rank, self.size = int(options["rank"]), int(options["world"])
        self._is_gpu = options["backend"] == "nccl"
        self._device = f"cuda:{options['local']}" if self._is_gpu else "cpu"

    def join(self) -> None:
        options = self._options
        if self._is_gpu:
            self._torch.cuda.set_device(self._device)
        self._dist.init_process_group(
            options["backend"],
            init_method=f"tcp://{options['host']}:{options['port']}",
            rank=self.rank,
            world_size=self.size,
            timeout=timedelta(seconds=float(options["join_seconds"])),
        )

    def measure(self, send: Callable[..., None]) -> None:
        ranks: list[Any] = [None] * self.size
        self._dist.all_gather_object(ranks, {"node": self._options["node"], "gpu": self._options["gpu"]})
        reductions = []
        for size in self._options["sizes"]:
            reductions.append(self._reduce(int(size)))
            send(type="progress", test="allreduce", size_bytes=size)
        pairs = self._measure_pairs(send)
        gathered: list[Any] = [None] * self.size
        self._dist.all_gather_object(gathered, pairs)
        if self.rank == 0:
            all_pairs = [pair for part in gathered for pair in part]
            send(type="measured", ranks=ranks, reductions=reductions, pairs=all_pairs)

    def _synchronize(self) -> None:
        if self._is_gpu:
            self._torch.cuda.synchronize()

    def _reduce(self, size: int) -> dict[str, Any]:
        """Seconds of one all-reduce on the slowest rank; a wrong sum is an error."""
        torch = self._torch
        values = torch.full((size // 4,), float(self.rank + 1), device=self._device)
        self._dist.all_reduce(values)
        expected = self.size * (self.size + 1) / 2
        wrong = int((values != expected).sum())
        if wrong:
            raise ArithmeticError(f"{wrong} of {size // 4} sums of an all-reduce are wrong")
        self._dist.barrier()
        self._synchronize()
        start = time.perf_counter()
        for _ in range(REPEATS):
            self._dist.all_reduce(values)
        self._synchronize()
        seconds = torch.tensor([(time.perf_counter() - start) / REPEATS], dtype=torch.float64, device=self._device)
        self._dist.all_reduce(seconds, op=self._dist.ReduceOp.MAX)
        return {"size_bytes": size, "seconds": float(seconds.item()), "ranks": self.size}

    def _measure_pairs(self, send: Callable[..., None]) -> list[dict[str, Any]]:
        """Measure the fastest of several exchanges with every other rank; the lower rank of a pair returns the rate."""
        torch, element_count = self._torch, int(self._options["pair_bytes"]) // 4
        sent = torch.full((element_count,), float(self.rank), device=self._device)
        received = torch.empty_like(sent)
        pairs, schedule = [], pairwise.schedule_rounds(self.size)
        for number, matched in enumerate(schedule):
            partner = next((a + b - self.rank for a, b in matched if self.rank in (a, b)), None)
            self._dist.barrier()
            if partner is not None:
                seconds = min(self._exchange_seconds(sent, received, partner) for _ in range(REPEATS))
                if bool((received != float(partner)).any()):
                    raise ArithmeticError(f"data from rank {partner} to rank {self.rank} changed on the way")
                if self.rank < partner:
                    rate = element_count * 4 / seconds / 1e9
                    pairs.append({"first": self.rank, "second": partner, "gb_per_second": rate})
            send(type="progress", test="pairs", done=(number + 1) / len(schedule))
        return pairs

    def _exchange_seconds(self, sent: Any, received: Any, partner: int) -> float:
        dist = self._dist
        self._synchronize()
        start = time.perf_counter()
        if {self.rank, partner} == set(self._options.get("slow_pair", ())):
            time.sleep(0.05)
        operations = [dist.P2POp(dist.isend, sent, partner), dist.P2POp(dist.irecv, received, partner)]
        for work in dist.batch_isend_irecv(operations):
            work.wait()
        self._synchronize()
        return time.perf_counter() - start


if __name__ == "__main__":
    main()
