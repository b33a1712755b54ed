"""Queries whose clients leave, or that are built to exhaust memory: the hub scrapes, evaluates rules and answers."""

from __future__ import annotations

import contextlib
import random
import re
import socket
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlencode

from tests.faults.away import reads
from tests.faults.world import Outcome, Refused, World, ask, until, world
from tests.support import waiting

CLIENTS, ATTACK_SECONDS, ASK_SECONDS = 200, 40.0, 0.2
# Another address than that of the person who asks meanwhile: clients get their turns one after the other.
ATTACKER = "127.0.0.2"
HEAVY = (
    "double_exponential_smoothing(vector(time())[20d:1s], 0.5, 0.5)",
    'max_over_time(quantile_over_time(0.9, {__name__=~"DCGM_.*"}[10m])[1h:1s])',
    " or ".join(f'label_replace({{__name__=~"DCGM_.*"}},"z{number}","1","","")' for number in range(90)),
    'count_over_time(topk(5, {__name__=~"DCGM_.*"})[1h:100ms])',
    "{" + ",".join(f'__name__=~".*({number}|x).*"' for number in range(2000)) + "}",
)
TRIPLE = 'label_join({},"a","","a","a","a")'
# While the attack lasts, this person's query waits for the interpreter at most; a busy machine is no fault.
ANSWER_SECONDS, ENDED_SECONDS = 15.0, 20.0
# Of the scrapes and evaluations that a hub at rest has in this time, one every five seconds.
LEAST_SHARE = 0.3
MIN_TURNS_AT_REST = 4
MAX_RESIDENT_MEBIBYTES = 3000
TURNS = {"scrapes": "DCGM_FI_DEV_GPU_TEMP", "evaluations": "watchkeeper:node_exporters_up:min"}
PANELS = re.compile(r"^watchkeeper_web_panels\{.*\} (\d+)", re.MULTILINE)


def abandoned_queries(folder: Path, outcome: Outcome, rng: random.Random, *, rounds: int) -> None:
    with world(folder, speed=1.0) as made:
        made.start()
        at_rest = until(lambda: at_work(made), "the fleet is scraped and rules are evaluated")
        slowest, ended = 0.0, 0.0
        for outcome.rounds in range(1, rounds + 1):
            with heavy_clients(made, rng):
                slowest = max(slowest, ask_meanwhile(made))
            left_at = time.monotonic()
            made.get("/api/v1/query?query=1")
            outcome.check((took := time.monotonic() - left_at) < ANSWER_SECONDS, f"query=1 took {took:.1f} s")
            until(lambda: not panels(made), "no query runs", within_seconds=ENDED_SECONDS)
            ended = max(ended, time.monotonic() - left_at)
            for name, count in turns(made).items():
                outcome.check(count >= LEAST_SHARE * at_rest[name], f"{count} {name}, {at_rest[name]} at rest")
                least = f"{name} in {ATTACK_SECONDS:g} s at least"
                outcome.counts[least] = min(count, outcome.counts.get(least, count))
            exhaust_memory(made, outcome)
        outcome.check(slowest < ANSWER_SECONDS, f"query=1 took {slowest:.1f} s while others asked")
        outcome.counts |= {"abandoned queries": CLIENTS * outcome.rounds, "MiB resident at most": resident(made)}
        outcome.counts |= {"ms for query=1 at most": round(1000 * slowest), "ms until none ran": round(1000 * ended)}
        outcome.check(resident(made) < MAX_RESIDENT_MEBIBYTES, f"{resident(made)} MiB resident")


@contextlib.contextmanager
def heavy_clients(made: World, rng: random.Random) -> Iterator[None]:
    """Clients that send a heavy query and are gone at the end of the block, without having read an answer."""
    with contextlib.ExitStack() as open_clients:
        for _ in range(CLIENTS):
            client = socket.create_connection(("127.0.0.1", made.port), source_address=(ATTACKER, 0))
            open_clients.enter_context(client)
            body = urlencode({"query": rng.choice(HEAVY)})
            head = ["POST /api/v1/query HTTP/1.1", "Host: 127.0.0.1", f"Content-Length: {len(body)}"]
            head += ["Content-Type: application/x-www-form-urlencoded", "", body]
            client.sendall("\r\n".join(head).encode())
        yield


def ask_meanwhile(made: World) -> float:
    """Ask a small question all the time of an attack; the seconds of the slowest answer."""
    slowest, ends_at = 0.0, time.monotonic() + ATTACK_SECONDS

    def ask_once() -> bool:
        nonlocal slowest
        began = time.monotonic()
        made.get("/api/v1/query?query=1")
        slowest = max(slowest, time.monotonic() - began)
        return time.monotonic() >= ends_at

    patience_seconds = 2 * ATTACK_SECONDS
    waiting.until(ask_once, what="the attack ends", timeout_seconds=patience_seconds, interval_seconds=ASK_SECONDS)
    return slowest


def at_work(made: World) -> dict[str, int] | None:
    counts = turns(made)
    return counts if reads(made) and min(counts.values()) >= MIN_TURNS_AT_REST else None


def turns(made: World) -> dict[str, int]:
    """How often the fleet was scraped and rules were evaluated in the last seconds."""
    counts = {}
    for name, series in TURNS.items():
        query = urlencode({"query": f"max(count_over_time({series}[{ATTACK_SECONDS:g}s]))"})
        result = made.get(f"/api/v1/query?{query}")["data"]["result"]
        counts[name] = int(result[0]["value"][1]) if result else 0
    return counts


def panels(made: World) -> int:
    with urllib.request.urlopen(f"{made.url}/metrics", timeout=60) as answer:
        return sum(map(int, PANELS.findall(answer.read().decode())))


def resident(made: World) -> int:
    assert made.hub is not None
    peak = re.search(r"VmHWM:\s+(\d+)", Path(f"/proc/{made.hub.pid}/status").read_text())
    return int(peak[1]) // 1024 if peak else 0


def exhaust_memory(made: World, outcome: Outcome) -> None:
    """A label that triples 15 times is refused, and so is a page of another site that asks for it."""
    expr = 'label_join(up,"a","","job","job")'
    for _ in range(15):
        expr = TRIPLE.format(expr)
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    for headers, status in ((form, 422), (form | {"Sec-Fetch-Site": "cross-site"}, 403)):
        try:
            ask(f"{made.url}/api/v1/query", urlencode({"query": expr}).encode(), headers=headers)
        except Refused as error:
            outcome.check(f"answered {status}" in str(error), str(error))
        else:
            outcome.check(False, f"a query of {len(expr)} bytes was answered with {headers}")
