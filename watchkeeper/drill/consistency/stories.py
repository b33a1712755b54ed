"""The stories of the consistency check: what happens to a simulated fleet, and when all pages are looked at.

`run_story` runs one by its name: `healthy`, a scenario, two scenarios as `A + B`, `bad input`, or `random SEED`, which
are random faults, repairs and restarts. Each gets its own fleet.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from watchkeeper.drill.consistency import judging, product
from watchkeeper.drill.consistency.invariants import subjects
from watchkeeper.drill.consistency.jumping_time import JumpingLoop
from watchkeeper.drill.consistency.looks import Look, RunCommand
from watchkeeper.kit import durations, wire
from watchkeeper.sim.scenario import FaultTarget

# Two racks, so that one can fail; all four pools.
RACK_GPUS, GPUS, SEED = 128, 64, 7
HEALTHY, BAD_INPUT, RANDOM, PAIR = "healthy", "bad input", "random", " + "
HEALTHY_SECONDS = 180
STEPS, MAX_FAULTS, STORM_ALERTS = 100, 4, 10_000


@dataclass(frozen=True, slots=True)
class StoryResult:
    story: str
    looks: int
    violations: tuple[judging.Violation, ...]


def run_story(story: str, run_command: RunCommand) -> StoryResult:
    loop = JumpingLoop()
    try:
        return loop.run_until_complete(_run(story, run_command))
    finally:
        loop.close()


async def _run(story: str, run_command: RunCommand) -> StoryResult:
    with tempfile.TemporaryDirectory(prefix="watchkeeper-consistency-") as folder:
        async with product.running(Path(folder), gpus=_fleet_size(story), seed=SEED) as running:
            watch = judging.Watch(running, run_command, story)
            if story == HEALTHY:
                await _healthy(watch)
            elif story == BAD_INPUT:
                await _bad_input(watch)
            elif story.startswith(RANDOM):
                await _random_steps(watch, random.Random(story))
            else:
                await _faults_and_repairs(watch, story.split(PAIR))
            return StoryResult(story, watch.looks, tuple(watch.violations.values()))


def _fleet_size(story: str) -> int:
    return RACK_GPUS if "rack" in story else GPUS


async def _healthy(watch: judging.Watch) -> None:
    await watch.product.advance(HEALTHY_SECONDS)
    await watch.look("healthy")
    await watch.product.restart_hub(seconds_down=20)
    await watch.product.advance(judging.SETTLE_SECONDS)
    await watch.look("after a restart of the hub")


@dataclass(frozen=True, slots=True)
class LookTimes:
    """Seconds between the looks after the fault, after the approval of its repair, and after its end."""

    # An event has been handled, an alert fires, a job is stalled, an idle GPU is reported.
    during: tuple[int, ...] = (25, 90, 240, 240)
    # The node is cordoned, it reboots, it is checked, it is back.
    repair: tuple[int, ...] = (20, 100, 200, 240)
    after: tuple[int, ...] = (45, 240)


# For pairs, of which there are a thousand.
FEWER_LOOKS = LookTimes((60, 240), (40, 240), (240,))


async def _faults_and_repairs(watch: judging.Watch, names: Sequence[str]) -> None:
    """Before, during and after: a healthy fleet, the faults, a restart of the hub, the repairs, and a healthy fleet."""
    simulation, times = watch.product.simulation, LookTimes() if len(names) == 1 else FEWER_LOOKS
    histories = [durations.parse_seconds(simulation.scenarios[name].history) for name in names]
    # Only what learns a baseline over longer than the default needs all of its history.
    await watch.product.advance(max([HEALTHY_SECONDS, *(seconds for seconds in histories if seconds > 600)]))
    await watch.look("before")
    inject(watch.product, names)
    for seconds in times.during:
        await watch.product.advance(seconds)
        await watch.look(f"{seconds} s later, during", with_commands=seconds == times.during[1])
    await watch.product.restart_hub(seconds_down=20)
    await watch.product.advance(30)
    look = await watch.look("after a restart of the hub", with_commands=False)
    await _approve_all(watch.product, look)
    for seconds in times.repair:
        await watch.product.advance(seconds)
        look = await watch.look(f"{seconds} s later, during repair", with_commands=seconds == times.repair[1])
        await _approve_all(watch.product, look)
    for id in list(simulation.faults.active):
        simulation.end_fault(id)
    for seconds in times.after:
        await watch.product.advance(seconds)
        await watch.look(f"{seconds} s later, after repair", with_commands=seconds == times.after[-1])


def inject(running: product.RunningProduct, names: Sequence[str]) -> None:
    """Inject faults, the second one beside the first on its node."""
    first = running.simulation.inject(names[0])
    for name in names[1:]:
        strikes = running.simulation.scenarios[name].strikes
        gpus = [gpu.index for gpu in first.node.gpus if first.gpu is None or gpu.row != first.gpu.row]
        running.simulation.inject(name, node=first.node.name, gpu=gpus[-1] if strikes is FaultTarget.GPU else None)


async def _approve_all(running: product.RunningProduct, look: Look) -> None:
    """Approve each plan that waits for it, and confirm each manual step."""
    for repair in subjects.repairs(look):
        path = f"/api/incidents/{repair['incident']}"
        if repair["state"] == "planned":
            await running.post(f"{path}/approve", {"digest": repair["digest"]})
        elif repair["action"] in ("inspect", "hand_over"):
            await running.post(f"{path}/step-done")


# Bad input


async def _bad_input(watch: judging.Watch) -> None:
    await watch.product.advance(HEALTHY_SECONDS)
    await watch.look("before")
    for name, send in BAD_INPUTS.items():
        await send(watch.product)
        await watch.product.advance(60)
        await watch.look(f"after {name}")
        await watch.product.restart_hub(seconds_down=5)
        await watch.product.advance(30)
        await watch.look(f"restarted after {name}")


def _webhook(running: product.RunningProduct, label_sets: Sequence[dict[str, str]]) -> dict[str, Any]:
    starts_at = wire.format_time(running.now)
    alerts = [{"status": "firing", "labels": labels, "annotations": {}, "startsAt": starts_at} for labels in label_sets]
    return {"version": "4", "status": "firing", "alerts": alerts}


async def _alerts_without_labels(running: product.RunningProduct) -> None:
    await running.post("/api/alertmanager", _webhook(running, [{}, {"alertname": "Mystery"}, {"severity": "critical"}]))


async def _alerts_with_foreign_labels(running: product.RunningProduct) -> None:
    label_sets = [
        {"alertname": "Fremd", "host": "db-7", "schwere": "hoch", "größe": "10 ℃"},
        {"alertname": "Wide", "Hostname": "no-such-node", "UUID": "GPU-none", "gpu": "99", "severity": "SEV0"},
        {"alertname": "Cluster", "cluster": "elsewhere", "Hostname": "gpu-r01-01", "severity": "critical"},
    ]
    await running.post("/api/alertmanager", _webhook(running, label_sets))


async def _ten_thousand_alerts(running: product.RunningProduct) -> None:
    nodes = [node.name for node in running.simulation.layout.nodes]
    labels = [{"alertname": "Storm", "Hostname": nodes[at % 2], "n": str(at)} for at in range(STORM_ALERTS)]
    for first in range(0, STORM_ALERTS, 1000):
        await running.post("/api/alertmanager", _webhook(running, labels[first : first + 1000]))


async def _clocks_that_disagree(running: product.RunningProduct) -> None:
    """Events of nodes whose clocks are an hour ahead, an hour behind, and at the start of 1970."""
    nodes, cluster = running.simulation.layout.nodes, running.simulation.settings.cluster
    times = (running.now + timedelta(hours=1), running.now - timedelta(hours=1), running.now - timedelta(days=20_000))
    for node, at in zip(nodes, times, strict=False):
        place = {"cluster": cluster, "node": node.name, "gpu": node.gpus[0].uuid}
        text = "NVRM: Xid (PCI:0000:1b:00): 48, pid=1, name=python3, DBE"
        event = {"kind": "xid", "code": 48, "place": place, "at": wire.format_time(at), "text": text}
        await running.post("/api/events", [{"id": f"skewed/{node.name}/{at:%s}", **event}])


BAD_INPUTS: dict[str, Callable[[product.RunningProduct], Awaitable[None]]] = {
    "alerts without labels": _alerts_without_labels,
    "alerts with foreign labels": _alerts_with_foreign_labels,
    "clocks that disagree": _clocks_that_disagree,
    "ten thousand alerts": _ten_thousand_alerts,
}


# Random steps


async def _random_steps(watch: judging.Watch, rng: random.Random) -> None:
    await watch.product.advance(HEALTHY_SECONDS)
    for step in range(STEPS):
        look = await watch.look(f"step {step}", with_commands=step % 10 == 0)
        name, weight = zip(*((name, weight) for name, (weight, _) in RANDOM_STEPS.items()), strict=True)
        chosen = rng.choices(name, weight)[0]
        await RANDOM_STEPS[chosen][1](watch.product, rng, look)
        await watch.product.advance(rng.uniform(5, 90))


async def _inject(running: product.RunningProduct, rng: random.Random, _: Look) -> None:
    if len(running.simulation.faults.active) < MAX_FAULTS:
        running.simulation.inject(rng.choice(list(running.simulation.scenarios)))


async def _end_fault(running: product.RunningProduct, rng: random.Random, _: Look) -> None:
    if running.simulation.faults.active:
        running.simulation.end_fault(rng.choice(list(running.simulation.faults.active)))


async def _approve(running: product.RunningProduct, _: random.Random, look: Look) -> None:
    await _approve_all(running, look)


async def _reject(running: product.RunningProduct, rng: random.Random, look: Look) -> None:
    if repairs := subjects.repairs(look):
        await running.post(f"/api/incidents/{rng.choice(repairs)['incident']}/reject", {"why": "random step"})


async def _resolve(running: product.RunningProduct, rng: random.Random, look: Look) -> None:
    if cards := subjects.cards(look):
        await running.post(f"/api/incidents/{rng.choice(cards)['id']}/resolve", {"why": "random step"})


async def _restart(running: product.RunningProduct, rng: random.Random, _: Look) -> None:
    await running.restart_hub(seconds_down=rng.uniform(1, 120))


async def _wait(running: product.RunningProduct, rng: random.Random, look: Look) -> None:
    """Only time passes."""


# Each with its weight.
RANDOM_STEPS: dict[str, tuple[float, Callable[[product.RunningProduct, random.Random, Look], Awaitable[None]]]] = {
    "inject": (4, _inject),
    "end fault": (2, _end_fault),
    "approve": (3, _approve),
    "reject": (0.5, _reject),
    "resolve": (0.5, _resolve),
    "restart": (0.5, _restart),
    "wait": (2, _wait),
}
