"""One rank of the fabric check: a child that joins the others through torch.distributed and says what it measured.

`fabric_run` starts one for each GPU of the node, or some on the processor with Gloo. Ranks do an all-reduce of growing
size, whose sum they know, and then exchange with each other rank in turn (`fabric_pairs.rounds`). Rank 0 gathers the
rates and says them all.
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
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    threading.Thread(target=_leave_with_parent, daemon=True).start()

    def say(**words: Any) -> None:
        answers.write(json.dumps(words) + "\n")

    try:
        torch = importlib.import_module("torch")
        distributed = importlib.import_module("torch.distributed")
    except Exception as error:  # Deliberately everything: a torch that is half installed raises anything.
        say(say="absent", why=f"torch cannot be imported: {error}"[:300])
        return
    try:
        rank = RankWorker(torch, distributed, json.loads(sys.argv[1]))
        rank.join()
        say(say="joined", rank=rank.rank)
        rank.work(say)
    except Exception as error:  # Deliberately everything: whatever the network does to a rank is its result.
        say(
            say="failed",
            why=f"{type(error).__name__}: {str(error).strip().splitlines()[0][:300] if str(error) else ''}",
        )
        answers.flush()
        os._exit(1)
    say(say="end")
    answers.flush()
    # Not through torch's clean-up, which may wait for a rank that is gone.
    os._exit(0)


def _leave_with_parent() -> None:
    sys.stdin.read()
    os._exit(0)


class RankWorker:
    """This rank among all; `order` is what `fabric_run.Plan` says."""

    def __init__(self, torch: Any, distributed: Any, order: Mapping[str, Any]) -> None:
        self._torch, self._dist, self._order = torch, distributed, order
        self.rank, self.size = int(order["rank"]), int(order["world"])
        self._is_gpu = order["backend"] == "nccl"
        self._device = f"cuda:{order['local']}" if self._is_gpu else "cpu"

    def join(self) -> None:
        order = self._order
        if self._is_gpu:
            self._torch.cuda.set_device(self._device)
        self._dist.init_process_group(
            order["backend"],
            init_method=f"tcp://{order['host']}:{order['port']}",
            rank=self.rank,
            world_size=self.size,
            timeout=timedelta(seconds=float(order["join_seconds"])),
        )

    def work(self, say: Callable[..., None]) -> None:
        ranks: list[Any] = [None] * self.size
        self._dist.all_gather_object(ranks, {"node": self._order["node"], "gpu": self._order["gpu"]})
        reductions = []
        for size in self._order["sizes"]:
            reductions.append(self._reduce(int(size)))
            say(say="progress", test="allreduce", size_bytes=size)
        pairs = self._sweep(say)
        gathered: list[Any] = [None] * self.size
        self._dist.all_gather_object(gathered, pairs)
        if self.rank == 0:
            found = [pair for part in gathered for pair in part]
            say(say="found", ranks=ranks, reductions=reductions, pairs=found)

    def _wait(self) -> None:
        if self._is_gpu:
            self._torch.cuda.synchronize()

    def _reduce(self, size: int) -> dict[str, Any]:
        """Seconds of one all-reduce, the slowest rank's; an exact sum that comes out wrong is an error."""
        torch = self._torch
        values = torch.full((size // 4,), float(self.rank + 1), device=self._device)
        self._dist.all_reduce(values)
        expected = self.size * (self.size + 1) / 2
        wrong = int((values != expected).sum())
        if wrong:
            raise ArithmeticError(f"{wrong} of {size // 4} sums of an all-reduce are wrong")
        self._dist.barrier()
        self._wait()
        start = time.perf_counter()
        for _ in range(REPEATS):
            self._dist.all_reduce(values)
        self._wait()
        took = torch.tensor([(time.perf_counter() - start) / REPEATS], dtype=torch.float64, device=self._device)
        self._dist.all_reduce(took, op=self._dist.ReduceOp.MAX)
        return {"size_bytes": size, "seconds": float(took.item()), "ranks": self.size}

    def _sweep(self, say: Callable[..., None]) -> list[dict[str, Any]]:
        """Exchanges of this rank, the fastest of several each; of each pair the lower rank keeps the rate."""
        torch, words = self._torch, int(self._order["pair_bytes"]) // 4
        sent = torch.full((words,), float(self.rank), device=self._device)
        received = torch.empty_like(sent)
        found, schedule = [], pairwise.rounds(self.size)
        for number, matched in enumerate(schedule):
            partner = next((a + b - self.rank for a, b in matched if self.rank in (a, b)), None)
            self._dist.barrier()
            if partner is not None:
                took = min(self._exchange_seconds(sent, received, partner) for _ in range(REPEATS))
                if bool((received != float(partner)).any()):
                    raise ArithmeticError(f"what rank {partner} sent to rank {self.rank} arrived changed")
                if self.rank < partner:
                    found.append({"one": self.rank, "other": partner, "rate": words * 4 / took / 1e9})
            say(say="progress", test="pairs", done=(number + 1) / len(schedule))
        return found

    def _exchange_seconds(self, sent: Any, received: Any, partner: int) -> float:
        self._wait()
        start = time.perf_counter()
        self._exchange(sent, received, partner)
        self._wait()
        return time.perf_counter() - start

    def _exchange(self, sent: Any, received: Any, partner: int) -> None:
        if {self.rank, partner} == set(self._order.get("slow_pair", ())):
            time.sleep(0.05)
        dist = self._dist
        both = [dist.P2POp(dist.isend, sent, partner), dist.P2POp(dist.irecv, received, partner)]
        for work in dist.batch_isend_irecv(both):
            work.wait()


if __name__ == "__main__":
    main()
