"""The doctor over log text: megabytes a second on one core, by how many lines hold a word of a signature, and memory.

Lines are those of a training job's log with changing numbers, names and addresses; of each kind with a signature word
most only look like trouble, as in real logs. The same lines are also read as Docker, the journal and a Go program's
logger wrap them in JSON. `reference` is the time of Python alone to split the same bytes into
lines and search each for one word, in the same run. Each density runs in a process of its own, so that its peak of
resident memory is its own.
"""

from __future__ import annotations

import argparse
import io
import json
import random
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial

from watchkeeper.doctor import examine
from watchkeeper.readers import bundles

DULL = (
    "2026-08-10 05:{minute:02}:{second:02},{milli:03} INFO trainer.py:{number} step {step} loss {loss:.4f} lr 3.0e-04",
    "[2026-08-10 05:{minute:02}:{second:02},{milli:03}] [INFO] [logging.py:96:log_dist] [Rank 0] step={step}, ok",
    "Aug 10 05:{minute:02}:{second:02} gpu{node:03} systemd[1]: Started session-{number}.scope - session {number}",
    "{minute:02}:{second:02}.{milli:03} {hexa} fetched shard-{number:05}.tar of s3://bucket/{word}/{step}, {milli} ms",
)
# Each holds a word that some signature is found by.
TELLING = (
    "2026-08-10 05:{minute:02}:{second:02},{milli:03} WARNING loader.py:{number} worker {node} retries: {word} failed",
    "gpu{node:03}:{number}:{step} [{gpu}] NCCL INFO Channel {milli:02}/0 : {gpu}[{gpu}] -> 3[3] via P2P/CUMEM/read",
    "gpu{node:03}:{number}:{step} [{gpu}] NCCL INFO comm 0x{hexa} rank {node} nranks 512 cudaDev {gpu} busId 1b000",
    "[rank{node}]: checkpoint {step} of {word} saved to /ckpt/{hexa} in {milli} ms, memory {loss:.1f} GiB",
    "Aug 10 05:{minute:02}:{second:02} gpu{node:03} kernel: audit: type=1400 operation=open name={hexa} memory",
    "2026-08-10 05:{minute:02}:{second:02},{milli:03} INFO net.py:{number} connection {hexa} to gpu{node:03} closed",
)
WORDS = ("alpha", "bravo", "carol", "delta", "echoes", "foxes", "golfer", "hotels")
BLOCK_LINES = 20_000


def _docker(chance: random.Random, line: str) -> str:
    time = f"2026-08-10T05:36:{chance.randrange(60):02}.{chance.randrange(10**9):09}Z"
    return json.dumps({"log": line, "stream": "stderr", "time": time})


def _journal(chance: random.Random, line: str) -> str:
    fields = {
        "__CURSOR": f"s={chance.getrandbits(128):032x};i={chance.getrandbits(24):x}",
        "__REALTIME_TIMESTAMP": str(1_786_340_165_000_000 + chance.randrange(10**12)),
        "_BOOT_ID": "0123456789abcdef0123456789abcdef",
        "PRIORITY": "6",
        "_COMM": "python3",
        "_HOSTNAME": "gpu007",
        "SYSLOG_IDENTIFIER": "trainer",
        "_PID": str(chance.randrange(100_000)),
        "MESSAGE": line.rstrip(),
    }
    return json.dumps(fields)


def _logger(chance: random.Random, line: str) -> str:
    ts, step = 1_786_340_165 + chance.random() * 1000, chance.randrange(10_000)
    return json.dumps({"level": "info", "ts": ts, "logger": "trainer", "msg": line.rstrip(), "step": step})


WRAPPINGS: dict[str, Callable[[random.Random, str], str]] = {
    "docker": _docker,
    "journal": _journal,
    "logger": _logger,
}


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--megabytes", type=int, default=96, help="text for each density")
    parser.add_argument("--turns", type=int, default=3, help="runs of each density; the fastest counts")
    parser.add_argument("--one", type=float, help=argparse.SUPPRESS)
    parser.add_argument("--wrapping", choices=WRAPPINGS, help=argparse.SUPPRESS)


def measure(options: argparse.Namespace) -> dict[str, float]:
    if options.one is not None:
        return run(options.one, options.megabytes, options.wrapping)
    found: dict[str, float] = {"megabytes": options.megabytes}
    plain = [(name, share, "") for name, share in (("none", 0.0), ("percent", 0.01), ("tenth", 0.1), ("half", 0.5))]
    for name, share, wrapping in [*plain, *((f"{wrapping}_tenth", 0.1, wrapping) for wrapping in WRAPPINGS)]:
        turns = [run_alone(share, options.megabytes, wrapping) for _ in range(options.turns)]
        best = max(turns, key=lambda turn: turn["megabytes_per_second"])
        found |= {f"{name}_{key}": value for key, value in best.items()}
    return found


def run_alone(share: float, megabytes: int, wrapping: str) -> dict[str, float]:
    command = [sys.executable, "-m", "bench", "doctor", "--json", f"--one={share}", f"--megabytes={megabytes}"]
    command += [f"--wrapping={wrapping}"] * bool(wrapping)
    answer: dict[str, float] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return {key: value for key, value in answer.items() if key != "bench"}


def run(share: float, megabytes: int, wrapping: str | None) -> dict[str, float]:
    stream = Repeated(blocks(share, wrapping), megabytes << 20)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.process_time()
    examine.examine([bundles.Stream("train.log", stream)])
    took = time.process_time() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.process_time()
    for block in stream.blocks:
        sum(b"Xid" in line for line in block.split(b"\n"))
    reference = (time.process_time() - began) * megabytes * (1 << 20) / sum(map(len, stream.blocks))
    return {
        "megabytes_per_second": round(megabytes / took, 1),
        "per_reference": round(took / reference, 2),
        "peak_resident_megabytes": round(peak / 1024, 1),
        "of_which_before_megabytes": round(before / 1024, 1),
    }


def blocks(share: float, wrapping: str | None = None) -> list[bytes]:
    """Some megabytes of lines, different throughout; what is longer repeats them."""
    chance = random.Random(8)
    if not wrapping:
        return ["".join(_lines(chance, share)).encode() for _ in range(4)]
    wrap = partial(WRAPPINGS[wrapping], chance)
    return ["".join(f"{wrap(line)}\n" for line in _lines(chance, share)).encode() for _ in range(4)]


def _lines(chance: random.Random, share: float) -> Iterator[str]:
    for _ in range(BLOCK_LINES):
        shape = chance.choice(TELLING if chance.random() < share else DULL)
        yield (
            shape.format(
                minute=chance.randrange(60),
                second=chance.randrange(60),
                milli=chance.randrange(1000),
                number=chance.randrange(100_000),
                step=chance.randrange(10_000_000),
                node=chance.randrange(512),
                gpu=chance.randrange(8),
                loss=chance.random() * 10,
                word=chance.choice(WORDS),
                hexa=f"{chance.getrandbits(40):010x}",
            )
            + "\n"
        )


class Repeated(io.RawIOBase):
    """The blocks again and again up to a size, without holding more than them."""

    def __init__(self, given: list[bytes], size: int) -> None:
        self.blocks = given
        self._left = size
        self._rest = b""
        self._next = 0

    def read(self, size: int = -1, /) -> bytes:
        if not self._rest:
            self._rest = self.blocks[self._next % len(self.blocks)]
            self._next += 1
        piece = self._rest[: min(size if size >= 0 else len(self._rest), self._left)]
        self._rest = self._rest[len(piece) :]
        self._left -= len(piece)
        return piece
