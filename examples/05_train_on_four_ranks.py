"""A tiny model trained by four ranks on CPUs, watched: `python examples/05_train_on_four_ranks.py FOLDER [FAULT…]`.

Needs PyTorch; of Watchkeeper only `watchkeeper.instrument`, which imports nothing else. FAULT makes one rank `slow`, or
lets it `die`, `diverge` or send a `wrong-shape`; several are run one after the other. Each rank writes its log into
FOLDER/FAULT, and a list there says where its metrics page is; examples/06_which_rank_is_it.py reads both.
"""

import logging
import os
import signal
import socket
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch

# The first step would import it in each rank; here it is imported once for all of them.
import torch._dynamo
import torch.distributed as dist
from torch import multiprocessing, nn
from torch.nn.parallel import DistributedDataParallel

from watchkeeper.instrument.barrier import barrier_report
from watchkeeper.instrument.exports import Exports
from watchkeeper.instrument.training import TrainingMonitor

RANKS, STEPS, BAD_STEP = 4, 30, 10
BAD_RANK = int(os.environ.get("BAD_RANK", "2"))
# A step of this model takes a few milliseconds, so that the example lasts seconds.
STEP_SECONDS = 0.05


def batches(rank, fault):
    torch.manual_seed(rank)
    for step in range(1, STEPS + 1):
        batch = torch.randn(8, 16)
        if fault == "diverge" and rank == BAD_RANK and step == BAD_STEP:
            batch[3, 5] = float("inf")
        yield step, batch


def checked_group():
    """What TORCH_DISTRIBUTED_DEBUG=DETAIL does for all groups: PyTorch compares what the ranks call.

    Only this one has it, because DistributedDataParallel of PyTorch 2.13 crashes with it on CPUs.
    """
    dist.set_debug_level(dist.DebugLevel.DETAIL)
    group = dist.new_group()
    dist.set_debug_level(dist.DebugLevel.OFF)
    return group


def train(rank, folder, fault):
    monitor = TrainingMonitor("four-ranks", Exports(port=0, announce=folder))
    with monitor:
        dist.init_process_group("gloo", timeout=timedelta(seconds=20))
        model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1)))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        monitor.watch(model, optimizer)
        monitor.watch_communication(model)
        reports = checked_group()
        for step, batch in monitor.batches(batches(rank, fault)):
            loss = model(batch).square().mean()
            # The work that a larger model would have: a slow rank takes three times as long.
            time.sleep(STEP_SECONDS * (3 if fault == "slow" and rank == BAD_RANK else 1))
            if fault == "die" and rank == BAD_RANK and step == BAD_STEP:
                os.kill(os.getpid(), signal.SIGSEGV)
            monitor.report(loss=loss)
            monitor.add_samples(samples=len(batch))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            is_wrong = fault == "wrong-shape" and rank == BAD_RANK and step == BAD_STEP
            with monitor.communication():
                dist.all_reduce(torch.zeros(5 if is_wrong else 4), group=reports)
        barrier_report(timeout_seconds=10, place=monitor.place)
        dist.destroy_process_group()


def start(rank, folder, fault, port):
    """What torchrun does for each rank: its environment, and a log of its own."""
    os.environ |= {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(RANKS),
    }
    log = os.open(folder / f"rank-{rank}.log", os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s")
    torch.set_num_threads(1)
    train(rank, folder, fault)


def main():
    folder = Path(sys.argv[1])
    for fault in sys.argv[2:] or ["none"]:
        run(folder / fault, fault)


def run(folder, fault):
    folder.mkdir(parents=True, exist_ok=True)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    forked = multiprocessing.get_context("fork")
    ranks = [forked.Process(target=start, args=(rank, folder, fault, port)) for rank in range(RANKS)]
    for rank in ranks:
        rank.start()
    for number, rank in enumerate(ranks):
        rank.join()
        print(f"{fault}: rank {number} ended with {rank.exitcode}", flush=True)


if __name__ == "__main__":
    main()
