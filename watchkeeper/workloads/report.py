"""One job in full: its line, efficiency, goodput, ranks side by side, hardware events and losses in its time.

`web/jobs_api` and `explain job` ask; the answers come through `questions`, the decisions are in `ranks`, `goodput`,
`efficiency` and `losses`, and here they meet.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from urllib.parse import urlsplit

from watchkeeper.kit import clock
from watchkeeper.model import clock_reasons, events, fleet, jobs, workloads
from watchkeeper.model.labels import Labels
from watchkeeper.query import gpu_trouble
from watchkeeper.query.engine import Engine
from watchkeeper.workloads import efficiency, goodput, identity, losses, ranks
from watchkeeper.workloads.identity import Key
from watchkeeper.workloads.questions import Questions, Rows

HOUR_SECONDS = 3600.0
LONGEST = timedelta(hours=24)
MOST_RANKS, MOST_EVENTS = 4096, 200
# Several times the largest jobs that there are; a page that says more is wrong.
LARGEST_WORLD = 100_000
# What nobody can say about a loss that went wrong where its GPUs do not export it.
UNTOLD = {
    "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": "memory errors of its GPUs (DCGM_FI_DEV_ECC_*): they may explain its loss",
    gpu_trouble.REASONS: f"why clocks of its GPUs were slow ({gpu_trouble.REASONS}): it may explain its loss",
}
# How several of a state are counted in a sentence.
DOES = {
    **{state: state.value for state in jobs.RankState},
    jobs.RankState.WORKS: "at work",
    jobs.RankState.WAITS: "waiting",
}
EventsBetween = Callable[[datetime, datetime], Sequence[events.Event]]


@dataclass(frozen=True, slots=True)
class Asked:
    """One job of a board, and what the hub knows of its hardware."""

    line: jobs.JobLine
    key: Key
    training: str
    parts: Sequence[workloads.ScheduledWorkload]
    events_between: EventsBetween
    place_name: Callable[[fleet.Place], str]
    cause_of: Callable[[events.Event], str | None]
    first_seen: float | None = None


def make(engine: Engine, now: datetime, asked: Asked) -> jobs.JobReport:
    questions = Questions(engine, now, asked.key, training=asked.training)
    seen, nodes = _seen(questions)
    in_step = bool(asked.training) or asked.line.gpus <= 1
    is_stuck = asked.line.state in (jobs.JobState.HUNG, jobs.JobState.STALLED)
    beside, straggler = ranks.beside(seen, in_step=in_step or is_stuck or _may_be_in_step(seen), is_stuck=is_stuck)
    line = _with(asked.line, straggler, ranks.state_of_gang(beside) if len(beside) > 1 else "")
    since = _since(asked, now)
    uses = _facts(questions, line, nodes, {one.uuid for one in seen}) if nodes else efficiency.Facts(line.gpus)
    hardware = _hardware(asked, since, now, nodes=nodes, rank_of={one.uuid: one.rank for one in seen})
    lost, untold = _losses(questions, asked, since, seen=seen, hardware=hardware)
    runs = (_link(labels.get("run_url", "")) for labels in questions.told("training_run_info"))
    return jobs.JobReport(
        line,
        _why(line, beside),
        efficiency.judge(replace(uses, straggler=line.straggler), HOUR_SECONDS),
        _goodput(questions, asked, since, now),
        tuple(sorted(beside, key=_rank_first)[:MOST_RANKS]),
        max(0, len(beside) - MOST_RANKS),
        tuple(hardware[-MOST_EVENTS:]),
        lost,
        next(filter(None, runs), None),
        (*questions.refused, *untold),
    )


def _link(text: str) -> str | None:
    """An address that a person may click: whoever writes a job's page chose it, and a browser runs what others say."""
    try:
        parts = urlsplit(text)
    except ValueError:
        return None
    return text if parts.scheme in ("http", "https") and parts.netloc and text.isprintable() else None


def _seen(questions: Questions) -> tuple[list[ranks.Seen], set[str]]:
    """Every GPU or rank of the job with its numbers, and the job's nodes."""
    held, told = questions.held(), questions.told("training_rank_info")
    places = {labels.get("UUID", ""): labels for labels in [*held, *told] if labels.get("UUID")}
    nodes = {labels.get("Hostname", "") for labels in [*held, *told]} - {""}
    numbers: dict[str, dict[str, float]] = {}
    indexes: dict[str, str] = {}
    for labels, value in (questions.gpus(nodes) if nodes else {}).items():
        uuid = labels.get("UUID", "")
        if uuid in places:
            numbers.setdefault(uuid, {})[labels.get("field", "")] = value
            indexes[uuid] = labels.get("gpu", "")
    usual, around = questions.usual_watts(), _around(questions, nodes)
    steps = {identity.rank_of(labels): value for labels, value in questions.compute().items()}
    alive = {identity.rank_of(labels) for labels in questions.told("training_last_step_timestamp_seconds")}
    world = _world(questions.told("training_world_size"))
    rank_of = _ranks_of(places, told, indexes, world=world)
    found = [
        ranks.Seen(
            rank_of.get(uuid),
            labels.get("Hostname", ""),
            labels.get("gpu") or indexes.get(uuid, ""),
            uuid,
            numbers.get(uuid, {}).get("DCGM_FI_PROF_SM_ACTIVE"),
            numbers.get(uuid, {}).get("DCGM_FI_DEV_GPU_UTIL"),
            numbers.get(uuid, {}).get("DCGM_FI_DEV_POWER_USAGE"),
            steps.get(rank_of.get(uuid)),
            is_missing=bool(alive) and rank_of.get(uuid) is not None and rank_of.get(uuid) not in alive,
            limit_watts=numbers.get(uuid, {}).get("DCGM_FI_DEV_ENFORCED_POWER_LIMIT"),
            usual_watts=usual,
            link_bytes=around.links.get(uuid),
            cpu_share=around.cpus.get(labels.get("Hostname", "")),
            network_bytes=around.network.get(labels.get("Hostname", "")),
        )
        for uuid, labels in places.items()
    ]
    placed = {one.rank for one in found}
    expected = {*range(world), *(rank for rank in alive if rank is not None)} if alive else set()
    found += [
        ranks.Seen(rank, step_seconds=steps.get(rank), is_missing=rank not in alive) for rank in expected - placed
    ]
    return found, nodes


def _world(told: Rows) -> int:
    """How many ranks the job says that it has; 0 where it does not say, or says what no job has."""
    largest = max(told.values(), default=0.0)
    return round(largest) if 0 <= largest <= LARGEST_WORLD else 0


@dataclass(frozen=True, slots=True)
class _Around:
    """Bytes over the links of each GPU, and CPUs and network of each node, where they are measured."""

    links: Mapping[str, float]
    cpus: Mapping[str, float]
    network: Mapping[str, float]


def _around(questions: Questions, nodes: set[str]) -> _Around:
    if not nodes:
        return _Around({}, {}, {})
    cpus, network = questions.by_node(nodes)
    return _Around(
        {labels.get("UUID", ""): value for labels, value in questions.links(nodes).items()},
        {labels.get("instance", "").partition(":")[0]: value for labels, value in cpus.items()},
        {labels.get("instance", "").partition(":")[0]: value for labels, value in network.items()},
    )


def _ranks_of(places: Mapping[str, Labels], told: Rows, indexes: Mapping[str, str], *, world: int) -> dict[str, int]:
    """Which rank runs on which GPU: by its own word, else by their order where there is one GPU for each rank."""
    known = {labels.get("UUID", ""): rank for labels in told if (rank := identity.rank_of(labels)) is not None}
    if known or world != len(places):
        # The GPU of a rank that no longer speaks is the one that is left.
        left, free = set(range(world)) - set(known.values()), [uuid for uuid in places if uuid not in known]
        return {**known, free[0]: left.pop()} if len(left) == len(free) == 1 else known
    ordered = sorted(
        places,
        key=lambda uuid: jobs.rank_order(
            places[uuid].get("workload", ""), places[uuid].get("Hostname", ""), indexes.get(uuid, "")
        ),
    )
    return {uuid: rank for rank, uuid in enumerate(ordered)}


def _may_be_in_step(seen: Sequence[ranks.Seen]) -> bool:
    """Without a word of its own: GPUs that are alike busy, or of which some wait in a collective, train together."""
    if sum(one.state is not jobs.RankState.UNKNOWN for one in seen) < ranks.LEAST_GANG:
        return False
    waits = sum((one.utilisation_percent or 0.0) >= jobs.SPINS_PERCENT for one in seen)
    return waits > len(seen) / 2


def _rank_first(one: jobs.Rank) -> tuple[bool, int, str, str]:
    return one.rank is None, one.rank or 0, one.node, one.gpu


def _with(line: jobs.JobLine, straggler: jobs.Straggler | None, gang: str) -> jobs.JobLine:
    """The line, bettered by what its GPUs show side by side."""
    state = line.state
    if state is jobs.JobState.STALLED and gang == "hung":
        state = jobs.JobState.HUNG
    elif state is jobs.JobState.RUNNING and straggler is not None and straggler.score < 1:
        state = jobs.JobState.SLOW
    return replace(line, state=state, straggler=straggler or line.straggler)


def _why(line: jobs.JobLine, beside: Sequence[jobs.Rank]) -> str:
    states = [one.state for one in beside]
    counted = ", ".join(f"{states.count(state)} {DOES[state]}" for state in jobs.RankState if state in states)
    slow = line.straggler
    if slow is not None:
        return f"{jobs.called(slow)} {slow.why} ({counted})"
    return f"ranks: {counted}" if counted else "no GPU or rank of it is seen"


def _since(asked: Asked, now: datetime) -> datetime:
    """The begin of its window: when it started or was first seen, a day at most; an hour where nobody knows."""
    known = asked.line.started_at
    if known is None and asked.first_seen is not None:
        known = datetime.fromtimestamp(asked.first_seen, UTC)
    return max(known, now - LONGEST) if known is not None else now - timedelta(hours=1)


def _facts(questions: Questions, line: jobs.JobLine, nodes: set[str], own: set[str]) -> efficiency.Facts:
    uses = {labels.get("of", ""): value for labels, value in questions.uses().items()}
    memory = [value for labels, value in questions.memory(nodes).items() if labels.get("UUID") in own]
    slowed = [
        labels
        for labels, value in questions.slowed(nodes).items()
        if labels.get("UUID") in own and gpu_trouble.is_held_down(value)
    ]
    cpus, busy = questions.cpus(nodes)
    waits = questions.waits()
    return efficiency.Facts(
        float(line.gpus),
        uses,
        max(waits.values(), default=None),
        line.straggler,
        len(slowed),
        sum(memory) * 1024 * 1024 if memory else None,
        cpus,
        busy,
    )


def _goodput(questions: Questions, asked: Asked, since: datetime, now: datetime) -> jobs.Goodput:
    steps = questions.timeline("training_iterations_total", since)
    restarts = dict(questions.over("training_restarts_total", since))
    points = [goodput.Point(at, value, restarts.get(at)) for at, value in steps]
    # What lies before its first word is no failure: nobody saw it.
    while points and points[0].steps is None:
        del points[0]
    if not points:
        points = [goodput.Point(since.timestamp(), None), goodput.Point(now.timestamp(), None)]
    usual = goodput.Usual(
        questions.learned("watchkeeper:training_step:seconds"),
        questions.learned("watchkeeper:training_longest_pause:max1d"),
        questions.learned("watchkeeper:training_stall_limit:seconds"),
    )
    asked_at = min((part.requested_at for part in asked.parts if part.requested_at), default=None)
    began_at = min((part.started_at for part in asked.parts if part.started_at), default=None)
    queue = None if asked_at is None or began_at is None else max(0.0, began_at - asked_at)
    return goodput.account(points, usual, queue_seconds=queue)


def _hardware(
    asked: Asked, since: datetime, now: datetime, *, nodes: set[str], rank_of: Mapping[str, int | None]
) -> list[jobs.HardwareEvent]:
    return [
        jobs.HardwareEvent(
            event.at,
            asked.place_name(event.place),
            event.kind.value,
            str(event.code or ""),
            asked.cause_of(event),
            event.text[:200],
            rank_of.get(event.place.gpu or ""),
        )
        for event in asked.events_between(since, now)
        if event.place.cluster == asked.key.cluster
        and event.place.node in nodes
        and (asked.cause_of(event) is not None or event.kind is events.EventKind.GPU_RESET)
    ]


def _told_losses(rows: Rows) -> list[losses.Wrong]:
    """What watchkeeper.instrument counts: when a loss or gradient last became bad, by kind."""
    return [
        losses.Wrong(at, labels.get("kind", "event").replace("_", " "))
        for labels, value in rows.items()
        if value > 0 and (at := clock.moment(value)) is not None
    ]


def _losses(
    questions: Questions,
    asked: Asked,
    since: datetime,
    *,
    seen: Sequence[ranks.Seen],
    hardware: Sequence[jobs.HardwareEvent],
) -> tuple[tuple[jobs.LossEvent, ...], list[str]]:
    """What went wrong with loss and gradients, with what its GPUs did around then; and what of that nobody exports."""
    wrong = losses.merged(
        _told_losses(questions.told("training_event_timestamp_seconds")),
        losses.find(questions.over("training_loss", since), questions.over("training_grad_norm", since)),
    )
    gpus = {one.uuid: one for one in seen if one.uuid}
    nodes = {one.node for one in gpus.values()} - {""}
    own = [one for one in hardware if one.rank is not None]
    found, told = [], set()
    for one in wrong:
        rows = questions.trouble(nodes, one.at) if nodes else {}
        theirs = {labels: value for labels, value in rows.items() if labels.get("UUID", "") in gpus}
        told |= {labels.get("field", "") for labels in theirs}
        found.append(losses.join(one, own, _trouble(theirs, one.at, gpus, names=asked.place_name)))
    untold = [what for field, what in UNTOLD.items() if found and field not in told]
    return tuple(found), untold


def _trouble(
    told: Rows, at: datetime, gpus: Mapping[str, ranks.Seen], *, names: Callable[[fleet.Place], str]
) -> list[jobs.HardwareEvent]:
    """Memory errors and slowed clocks of its GPUs around a time, as events: counters have no moment of their own."""
    found = []
    for labels, value in told.items():
        one, field = gpus[labels.get("UUID", "")], labels.get("field", "")
        place = names(fleet.Place(labels.get("cluster", ""), node=one.node, gpu=one.uuid))
        if field in gpu_trouble.MEMORY_ERRORS and value > 0:
            cause, what = gpu_trouble.MEMORY_ERRORS[field]
            found.append(jobs.HardwareEvent(at, place, "ecc", "", cause, f"{value:.0f} {what} within 15 min", one.rank))
        elif field == gpu_trouble.REASONS and gpu_trouble.is_held_down(value):
            cause = "power_brake" if int(value) & clock_reasons.POWER_BRAKE else "thermal_throttle"
            text = f"clocks held down, reasons 0x{int(value):x}"
            found.append(jobs.HardwareEvent(at, place, "throttle", f"0x{int(value):x}", cause, text, one.rank))
    return found
