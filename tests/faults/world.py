"""What the harness runs and remembers: a simulated fleet, hubs that may die, and a ledger of what they acknowledged.

A `Ledger` writes as people, agents and Prometheus do, notes what was acknowledged, and afterwards asks for all of it.
"""

from __future__ import annotations

import contextlib
import json
import random
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.client import HTTPException
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

from tests import servers
from tests.faults.nursery import Forked, Nursery
from tests.support import waiting
from tests.support.running_product import WATCHKEEPER
from watchkeeper.incidents import correlate
from watchkeeper.kit import wire
from watchkeeper.model import events, fleet
from watchkeeper.model.labels import Labels
from watchkeeper.query.remote import remote_write

# Dear where something is wrong, and free otherwise: the machine may be as busy as it likes.
READY_SECONDS = 300.0
# A busy machine is no fault; a hub that was killed closes its connections at once.
ANSWER_SECONDS = 60.0
NODES = 8
# A hub takes 1,000; from here on one is ended instead.
MOST_SILENCES = 100
# What the events that a ledger writes are called: Xid 43.
REPORTED_CAUSE = "app_illegal_access"
# After each fault the newest are asked for, and at the end all that the hub's retention of a day has not removed.
RECENT_HOURS, KEPT_HOURS = 2, 20


@dataclass(slots=True)
class Outcome:
    """What one fault came to: how often, what was checked afterwards, and what was wrong."""

    name: str
    seed: int
    rounds: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    seconds: float = 0.0
    # Whoever watches a long run looks here.
    newest: ClassVar[Outcome | None] = None

    def __post_init__(self) -> None:
        Outcome.newest = self

    def check(self, is_so: bool, problem: str) -> None:
        if not is_so:
            self.problems.append(f"round {self.rounds}: {problem}")


class Away(Exception):
    """The hub did not answer; whether it has heard is unknown."""


class Refused(AssertionError):
    """The hub has heard and said no."""


def ask(url: str, body: Any = None, *, method: str | None = None, headers: Mapping[str, str] | None = None) -> Any:
    """The JSON answer; Away when there is none, or when the hub says that it cannot."""
    content = body if isinstance(body, bytes | None) else json.dumps(body).encode()
    sent = {"Content-Type": "application/json"} | dict(headers or {})
    request = urllib.request.Request(url, content, sent, method=method)
    try:
        with urllib.request.urlopen(request, timeout=ANSWER_SECONDS) as answer:
            return json.loads(answer.read() or b"{}")
    except urllib.error.HTTPError as error:
        with error:
            error_text = error.read().decode(errors="replace")[:300]
        if error.code in (429, 503):
            raise Away(error_text) from error
        raise Refused(f"{url} answered {error.code}: {error_text}") from error
    except (OSError, HTTPException, ValueError) as error:
        raise Away(str(error)) from error


def until(condition: Callable[[], Any], what: str, *, within_seconds: float = READY_SECONDS) -> Any:
    """The first true answer; AssertionError names what did not come true."""

    def answer() -> Any:
        with contextlib.suppress(Away):
            return condition()

    return waiting.until(answer, what=what, timeout_seconds=within_seconds, interval_seconds=waiting.PROGRAM_SECONDS)


@dataclass(slots=True)
class World:
    """A simulated fleet and the hub over it, which `start` may be called for again and again."""

    folder: Path
    speed: float
    epoch: float
    simulator: str
    port: int
    nursery: Nursery | None = None
    hub: subprocess.Popen[bytes] | Forked | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def data(self) -> Path:
        return self.folder / "kept"

    def now(self) -> float:
        return self.epoch + (time.time() - self.epoch) * self.speed

    def spawn(self) -> subprocess.Popen[bytes] | Forked:
        assert self.nursery is not None
        arguments = [self.simulator, str(self.data), str(self.port), str(self.speed), repr(self.epoch)]
        self.hub = self.nursery.bear(arguments)
        return self.hub

    def start(self) -> None:
        """Start the hub and wait until it is ready."""
        hub = self.spawn()

        def is_ready() -> bool:
            assert hub.poll() is None, f"the hub has ended: {self.tail()}"
            return self.is_up("/-/ready")

        until(is_ready, "the hub is ready")

    def is_up(self, path: str) -> bool:
        url, seconds = self.url + path, ANSWER_SECONDS
        with contextlib.suppress(OSError, HTTPException), urllib.request.urlopen(url, timeout=seconds):
            return True
        return False

    def kill(self) -> None:
        if self.hub is not None:
            self.hub.kill()
            self.hub.wait()

    def stop(self) -> None:
        if self.hub is not None and self.hub.poll() is None:
            self.hub.send_signal(signal.SIGTERM)
            try:
                self.hub.wait(15)
            except subprocess.TimeoutExpired:
                self.kill()

    def tail(self) -> str:
        return (self.folder / "hub.log").read_text(errors="replace")[-1500:]

    def get(self, path: str) -> Any:
        return ask(self.url + path)

    def inject(self, scenario: str, node: str) -> None:
        ask(f"{self.simulator}/faults", {"scenario": scenario, "node": node, "gpu": 0})


@contextlib.contextmanager
def world(folder: Path, *, speed: float = 20.0, environment: Mapping[str, str] | None = None) -> Iterator[World]:
    """A simulated fleet of 64 GPUs that outlives its hubs."""
    port, epoch = servers.free_port(), time.time()
    url = f"http://127.0.0.1:{port}"
    line = [*WATCHKEEPER, "sim", "run", "--gpus", str(8 * NODES), "--port", str(port)]
    line += ["--speed", str(speed), "--epoch", repr(epoch)]
    with (
        servers.running(line, ready_url=f"{url}/sd", log=folder / "sim.log"),
        contextlib.closing(Nursery(folder / "hub.log", environment)) as nursery,
    ):
        made = World(folder, speed, epoch, url, servers.free_port(), nursery)
        try:
            yield made
        finally:
            made.stop()


@dataclass(slots=True)
class Ledger:
    """What a hub has acknowledged, and therefore may never lose."""

    world: World
    rng: random.Random
    events: list[dict[str, Any]] = field(default_factory=list)
    samples: list[tuple[int, float]] = field(default_factory=list)
    silences: list[str] = field(default_factory=list)
    ended_silences: list[str] = field(default_factory=list)
    notes: list[tuple[str, str]] = field(default_factory=list)
    approved: list[str] = field(default_factory=list)
    # When each node had a fault, whether that was acknowledged or not.
    faults: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    incidents: set[str] = field(default_factory=set)
    audit: list[dict[str, Any]] = field(default_factory=list)
    tried: int = 0
    kinds: tuple[str, ...] = ("_events", "_sample", "_silence", "_note", "_approve")

    @property
    def acknowledged(self) -> int:
        silences = len(self.silences) + len(self.ended_silences)
        return len(self.events) + len(self.samples) + silences + len(self.notes) + len(self.approved)

    def write_something(self) -> None:
        """One write of a random kind; Away if it was not acknowledged."""
        self.tried += 1
        getattr(self, self.rng.choice(self.kinds))()

    def _events(self) -> None:
        self._push([self._event(f"gpu-r01-{self.rng.randint(1, NODES):02}") for _ in range(self.rng.randint(1, 5))])

    def report(self, node: str) -> None:
        """One fault of this node."""
        self._push([self._event(node)])

    def _push(self, batch: list[dict[str, Any]]) -> None:
        ask(f"{self.world.url}/api/events", batch)
        self.events += batch

    def _event(self, node: str) -> dict[str, Any]:
        at = datetime.fromtimestamp(self.world.now(), UTC)
        self.faults[node].append(at.timestamp())
        place = fleet.Place("sim", node=node)
        id = f"{self.rng.getrandbits(64):016x}"
        plain: dict[str, Any] = wire.to_plain(events.Event(id, events.EventKind.XID, 43, place, at, "NVRM: Xid 43"))
        return plain

    def _sample(self) -> None:
        at_ms, value = round(self.world.now() * 1000), float(self.rng.getrandbits(40))
        # Two samples of one time would be the same sample twice.
        if self.samples and at_ms <= self.samples[-1][0]:
            return
        body = remote_write.encode([(Labels({"__name__": "faults_sample"}), [at_ms], [value])])
        headers = {"Content-Type": "application/x-protobuf", "Content-Encoding": "snappy"}
        ask(f"{self.world.url}/api/v1/write", body, headers=headers)
        self.samples.append((at_ms, value))

    def _silence(self) -> None:
        if len(self.silences) >= MOST_SILENCES:
            self._end_silence()
            return
        body = {"matchers": [f"node=faults-{len(self.silences)}"], "for": "7d", "reason": "faults"}
        self.silences.append(ask(f"{self.world.url}/api/silences", body)["silence"]["id"])

    def _end_silence(self) -> None:
        # Not acknowledged, it may or may not be in force.
        id = self.silences.pop(self.rng.randrange(len(self.silences)))
        ask(f"{self.world.url}/api/silences/{id}", method="DELETE")
        self.ended_silences.append(id)

    def _note(self) -> None:
        if incidents := sorted(self.incidents):
            id, text = self.rng.choice(incidents), f"note {self.tried}"
            ask(f"{self.world.url}/api/incidents/{id}/note", {"text": text})
            self.notes.append((id, text))

    def _approve(self) -> None:
        planned = [repair for repair in self.world.get("/api/repairs")["repairs"] if repair["state"] == "planned"]
        # A plan may be another one, or over, by the time somebody has read it.
        with contextlib.suppress(Refused):
            for repair in planned[:1]:
                ask(f"{self.world.url}/api/incidents/{repair['incident']}/approve", {"digest": repair["digest"]})
                self.approved.append(repair["id"])

    def look(self) -> None:
        """Remember what is there now; it has to be there later."""
        self.incidents |= {
            incident["id"] for incident in self.world.get("/api/incidents?open=0&limit=1000")["incidents"]
        }
        self.audit = self.world.get("/api/repairs/log?limit=10000")["entries"]

    def check_samples(self, outcome: Outcome, *, hours: int = RECENT_HOURS) -> None:
        lost, kept = self._missing_samples(hours)
        if lost:
            # What is there later was not lost, but an answer without it was wrong.
            later, _ = self._missing_samples(hours)
            there = f"{len(self.samples)} were acknowledged, the answer had {kept}, the next one missed {len(later)}"
            outcome.check(False, f"{len(lost)} samples were missing: {lost[:3]}; {there}")

    def _missing_samples(self, hours: int) -> tuple[list[tuple[int, float]], int]:
        now = self.world.now()
        result = self.world.get(f"/api/v1/query?query=faults_sample[{hours}h]&time={now:.3f}")["data"]["result"]
        stored = {(round(at * 1000), float(value)) for series in result for at, value in series["values"]}
        expected = [sample for sample in self.samples if sample[0] > (now - hours * 3600) * 1000]
        return [sample for sample in expected if sample not in stored], len(stored)

    def check(self, outcome: Outcome, *, has_samples: bool = True) -> None:
        """Ask for everything that was acknowledged; samples only of a hub that keeps them itself."""
        world = self.world
        lost_events = sum(
            ask(f"{world.url}/api/events", self.events[at : at + 500])["kept"] for at in range(0, len(self.events), 500)
        )
        outcome.check(lost_events == 0, f"{lost_events} of {len(self.events)} acknowledged events were lost")
        if has_samples:
            self.check_samples(outcome)
        is_in_force = {silence["id"]: silence["active"] for silence in world.get("/api/silences")["silences"]}
        lost = set(self.silences) - is_in_force.keys()
        outcome.check(not lost, f"silences were lost: {lost}")
        # One that began while the clock was ahead is not in force before that time has come, ended or not.
        again = [id for id in self.ended_silences if is_in_force.get(id)]
        outcome.check(not again, f"silences are in force again: {again}")
        incidents = {incident["id"] for incident in world.get("/api/incidents?open=0&limit=1000")["incidents"]}
        outcome.check(self.incidents <= incidents, f"incidents were lost: {self.incidents - incidents}")
        for id in {id for id, _ in self.notes}:
            timeline = json.dumps(world.get(f"/api/incidents/{id}")["timeline"])
            missing = [text for at, text in self.notes if at == id and f'"{text}"' not in timeline]
            outcome.check(not missing, f"notes of {id} were lost: {missing}")
        entries = world.get("/api/repairs/log?limit=10000")["entries"]
        # A yes that ran out while guards objected is asked for again; the one that was given stays on record.
        approvals = sum(" approved plan " in entry["body"].get("text", "") for entry in entries)
        outcome.check(approvals >= len(self.approved), f"{len(self.approved)} were approved, {approvals} are on record")
        outcome.check(entries[: len(self.audit)] == self.audit, "lines of the audit were lost or changed")
        self.look()

    def check_storm(self, outcome: Outcome, injected: Counter[str]) -> None:
        """No more incidents of a node than it had faults, where those soon after each other are one."""
        incidents = self.world.get("/api/incidents?open=0&limit=1000")["incidents"]
        of_nodes = defaultdict(list)
        for incident in incidents:
            of_nodes[incident["place"].get("node")].append(
                f"{incident['id']} {incident['cause']}, {incident['title']}, {incident['opened_at']}"
            )
        for node, causes in of_nodes.items():
            flap_seconds = correlate.FLAP_TIME.total_seconds()
            pauses = sum(after - before > flap_seconds for before, after in pairwise(self.faults[node]))
            most = injected[node] + bool(self.faults[node]) + pauses
            outcome.check(len(causes) <= most, f"{len(causes)} incidents of {node} for {most} faults: {causes}")
        outcome.counts["incidents"] = len(incidents)
