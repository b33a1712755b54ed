"""The doctor on log text: megabytes per second on one core, by the share of lines with a signature word, and memory.

Lines are those of a training job with varying numbers, names and addresses; as in real logs, most lines with a
signature word are no error. The same lines are also wrapped in JSON as by Docker, the journal and a Go logger.
`reference` is the time of plain Python to split the same bytes into lines and search each for one word, in the same
run. Each density runs in a separate process, for a separate peak memory.
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

PLAIN_LINES = (
    "2026-08-10 05:{minute:02}:{second:02},{milli:03} INFO trainer.py:{number} step {step} loss {loss:.4f} lr 3.0e-04",
    "[2026-08-10 05:{minute:02}:{second:02},{milli:03}] [INFO] [logging.py:96:log_dist] [Rank 0] step={step}, ok",
    "Aug 10 05:{minute:02}:{second:02} gpu{node:03} systemd[1]: Started session-{number}.scope - session {number}",
    "{minute:02}:{second:02}.{milli:03} {hexa} fetched shard-{number:05}.tar of s3://bucket/{word}/{step}, {milli} ms",
)
# Each has a word of a signature.
SIGNATURE_LINES = (
    "2026-08-10 05:{minute:02}:{second:02},{milli:03} WARNING loader.py:{number} worker {node} retries: {word} failed",
    "gpu{node:03}:{number}:{step} [{gpu}] NCCL INFO Channel {milli:02}/0 : {gpu}[{gpu}] -> 3[3] via P2P/CUMEM/read",
    "gpu{node:03}:{number}:{step} [{gpu}] NCCL INFO comm 0x{hexa} rank {node} nranks 512 cudaDev {gpu} busId 1b000",
    "[rank{node}]: checkpoint {step} of {word} saved to /ckpt/{hexa} in {milli} ms, memory {loss:.1f} GiB",
    "Aug 10 05:{minute:02}:{second:02} gpu{node:03} kernel: audit: type=1400 operation=open name={hexa} memory",
    "2026-08-10 05:{minute:02}:{second:02},{milli:03} INFO net.py:{number} connection {hexa} to gpu{node:03} closed",
)
WORDS = ("alpha", "bravo", "carol", "delta", "echoes", "foxes", "golfer", "hotels")
BLOCK_LINES = 20_000


def _wrap_docker(rng: random.Random, line: str) -> str:
    time = f"2026-08-10T05:36:{rng.randrange(60):02}.{rng.randrange(10**9):09}Z"
    return json.dumps({"log": line, "stream": "stderr", "time": time})


def _wrap_journal(rng: random.Random, line: str) -> str:
    fields = {
        "__CURSOR": f"s={rng.getrandbits(128):032x};i={rng.getrandbits(24):x}",
        "__REALTIME_TIMESTAMP": str(1_786_340_165_000_000 + rng.randrange(10**12)),
        "_BOOT_ID": "0123456789abcdef0123456789abcdef",
        "PRIORITY": "6",
        "_COMM": "python3",
        "_HOSTNAME": "gpu007",
        "SYSLOG_IDENTIFIER": "trainer",
        "_PID": str(rng.randrange(100_000)),
        "MESSAGE": line.rstrip(),
    }
    return json.dumps(fields)


def _wrap_logger(rng: random.Random, line: str) -> str:
    ts, step = 1_786_340_165 + rng.random() * 1000, rng.randrange(10_000)
    return json.dumps({"level": "info", "ts": ts, "logger": "trainer", "msg": line.rstrip(), "step": step})


WRAPPINGS: dict[str, Callable[[random.Random, str], str]] = {
    "docker": _wrap_docker,
    "journal": _wrap_journal,
    "logger": _wrap_logger,
}


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--megabytes", type=int, default=96, help="text for each density")
    parser.add_argument("--turns", type=int, default=3, help="runs of each density; the fastest counts")
    parser.add_argument("--one", type=float, help=argparse.SUPPRESS)
    parser.add_argument("--wrapping", choices=WRAPPINGS, help=argparse.SUPPRESS)


def measure(options: argparse.Namespace) -> dict[str, float]:
    if options.one is not None:
        return run(options.one, options.megabytes, options.wrapping)
    numbers: dict[str, float] = {"megabytes": options.megabytes}
    densities = [(name, share, "") for name, share in (("none", 0.0), ("percent", 0.01), ("tenth", 0.1), ("half", 0.5))]
    for name, share, wrapping in [*densities, *((f"{wrapping}_tenth", 0.1, wrapping) for wrapping in WRAPPINGS)]:
        runs = [run_alone(share, options.megabytes, wrapping) for _ in range(options.turns)]
        best = max(runs, key=lambda turn: turn["megabytes_per_second"])
        numbers |= {f"{name}_{key}": value for key, value in best.items()}
    return numbers


def run_alone(share: float, megabytes: int, wrapping: str) -> dict[str, float]:
    command = [sys.executable, "-m", "bench", "doctor", "--json", f"--one={share}", f"--megabytes={megabytes}"]
    command += [f"--wrapping={wrapping}"] * bool(wrapping)
    numbers: dict[str, float] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return {key: value for key, value in numbers.items() if key != "bench"}


def run(share: float, megabytes: int, wrapping: str | None) -> dict[str, float]:
    stream = Repeated(blocks(share, wrapping), megabytes << 20)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started_at = time.process_time()
    examine.examine([bundles.Stream("train.log", stream)])
    cpu_seconds = time.process_time() - started_at
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started_at = time.process_time()
    for block in stream.blocks:
        sum(b"Xid" in line for line in block.split(b"\n"))
    reference = (time.process_time() - started_at) * megabytes * (1 << 20) / sum(map(len, stream.blocks))
    return {
        "megabytes_per_second": round(megabytes / cpu_seconds, 1),
        "per_reference": round(cpu_seconds / reference, 2),
        "peak_resident_megabytes": round(peak / 1024, 1),
        "of_which_before_megabytes": round(before / 1024, 1),
    }


def blocks(share: float, wrapping: str | None = None) -> list[bytes]:
    """Some megabytes of different lines, which longer inputs repeat."""
    rng = random.Random(8)
    if not wrapping:
        return ["".join(_lines(rng, share)).encode() for _ in range(4)]
    wrap = partial(WRAPPINGS[wrapping], rng)
    return ["".join(f"{wrap(line)}\n" for line in _lines(rng, share)).encode() for _ in range(4)]


def _lines(rng: random.Random, share: float) -> Iterator[str]:
    for _ in range(BLOCK_LINES):
        template = rng.choice(SIGNATURE_LINES if rng.random() < share else PLAIN_LINES)
        yield (
            template.format(
                minute=rng.randrange(60),
                second=rng.randrange(60),
                milli=rng.randrange(1000),
                number=rng.randrange(100_000),
                step=rng.randrange(10_000_000),
                node=rng.randrange(512),
                gpu=rng.randrange(8),
                loss=rng.random() * 10,
                word=rng.choice(WORDS),
                hexa=f"{rng.getrandbits(40):010x}",
            )
            + "\n"
        )


class Repeated(io.RawIOBase):
    """A stream that repeats the blocks up to a size."""

    def __init__(self, blocks: list[bytes], size: int) -> None:
        self.blocks = blocks
        self._remaining = size
        self._current = b""
        self._next_index = 0

    def read(self, size: int = -1, /) -> bytes:
        if not self._current:
            self._current = self.blocks[self._next_index % len(self.blocks)]
            self._next_index += 1
        part = self._current[: min(size if size >= 0 else len(self._current), self._remaining)]
        self._current = self._current[len(part) :]
        self._remaining -= len(part)
        return part
