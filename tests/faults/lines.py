"""An agent that is killed, behind a line that cuts, delays and loses answers: each kernel line is one event."""

from __future__ import annotations

import contextlib
import random
import re
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from tests.faults.wire import BadLine
from tests.faults.world import Outcome, World, until, world
from tests.support.running_product import WATCHKEEPER

# Each code is let through twenty times a minute.
CODES = (13, 31, 43, 45, 61, 62, 63, 64, 68, 69)
TAKEN = re.compile(r'^watchkeeper_hub_events_total\{kind="xid"\} (\d+)', re.MULTILINE)


def agent_behind_a_bad_line(folder: Path, outcome: Outcome, rng: random.Random, *, rounds: int) -> None:
    with world(folder, speed=1.0) as made, contextlib.closing(BadLine(made.port, rng)) as line:
        made.start()
        log, written = folder / "kern.log", 0
        log.touch()
        for outcome.rounds in range(1, rounds + 1):
            line.quality = rng.uniform(0.3, 0.8)
            with agent(folder, line.port, log) as child:
                met = line.accepted
                written += say(log, rng)
                until(lambda: line.accepted > met, "the agent calls")  # noqa: B023
                for _ in range(rng.randint(3, 8)):
                    written += say(log, rng)
                    time.sleep(rng.uniform(0, 0.3))
                if rng.random() < 0.8:
                    child.kill()
                    outcome.counts["kills"] = outcome.counts.get("kills", 0) + 1
        line.quality = 1.0
        with agent(folder, line.port, log):
            written += say(log, rng)
            until(lambda: taken(made) >= written, f"all {written} lines are events", within_seconds=90)
        outcome.check(taken(made) == written, f"{written} lines became {taken(made)} events")
        outcome.counts |= {"lines": written, "cut": line.cut, "answers lost": line.swallowed, "delayed": line.delayed}


@contextlib.contextmanager
def agent(folder: Path, port: int, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    line = [*WATCHKEEPER, "agent", "--hub", f"http://127.0.0.1:{port}", "--no-gpus", "--listen", "none"]
    line += ["--kernel-log", str(log), "--spool", str(folder / "spool"), "--cluster", "sim", "--node", "gpu-r01-01"]
    with (folder / "agent.log").open("ab") as log_file:
        child = subprocess.Popen(line, stdout=log_file, stderr=log_file)
    try:
        yield child
    finally:
        child.terminate()
        try:
            child.wait(10)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def say(log: Path, rng: random.Random) -> int:
    code, pid = rng.choice(CODES), rng.randint(1000, 9999)
    with log.open("a") as file:
        at = datetime.now(UTC).isoformat()
        file.write(f"{at} gpu-r01-01 kernel: NVRM: Xid (PCI:0000:3b:00): {code}, pid={pid}, name=python\n")
    return 1


def taken(made: World) -> int:
    with urllib.request.urlopen(f"{made.url}/metrics", timeout=10) as answer:
        match = TAKEN.search(answer.read().decode())
    return int(match[1]) if match else 0
