"""A closer look at one job: its ranks side by side, and what they say about its state and whom the others wait for.

`board` looks so at jobs that alerts or slow ranks speak of, `report` at the one that is asked for: a list and a page
say the same because both take it from here. Which rank does what is decided in `ranks`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from datetime import datetime

from watchkeeper.model import jobs
from watchkeeper.model.labels import Labels
from watchkeeper.workloads import efficiency, identity, ranks
from watchkeeper.workloads.job_queries import JobQueries, Rows

# Several times the largest jobs that there are; a page that says more is wrong.
LARGEST_WORLD = 100_000
STUCK = (jobs.JobState.HUNG, jobs.JobState.STALLED)


@dataclass(frozen=True, slots=True)
class JobInspection:
    """The ranks of a job as they were seen and side by side, and the one that the others wait for."""

    readings: Sequence[ranks.RankReading]
    nodes: set[str]
    ranks: tuple[jobs.Rank, ...]
    straggler: jobs.Straggler | None


def inspect_job(questions: JobQueries, line: jobs.JobLine) -> JobInspection:
    is_stuck = line.state in STUCK
    seen, nodes = _seen(questions, is_stuck=is_stuck, stood_still=line.stalled_since)
    in_step = bool(questions.training) or line.gpus <= 1 or is_stuck or _may_be_in_step(seen)
    return JobInspection(seen, nodes, *ranks.compare_ranks(seen, in_step=in_step, is_stuck=is_stuck))


def refine_line(
    line: jobs.JobLine, facts: efficiency.JobFacts, found: JobInspection
) -> tuple[jobs.JobLine, efficiency.JobFacts]:
    """The line of a job that something is wrong with, and what it is judged by, with what its ranks show."""
    state, straggler = line.state, found.straggler or line.straggler
    if state is jobs.JobState.STALLED and len(found.ranks) > 1 and ranks.group_state(found.ranks) == "hung":
        state = jobs.JobState.HUNG
    elif state is jobs.JobState.RUNNING and straggler is not None and straggler.score is not None:
        state = jobs.JobState.SLOW
    facts = replace(facts, straggler=straggler)
    return replace(line, state=state, straggler=straggler, bound_by=efficiency.bound_by(facts)), facts


def _seen(
    questions: JobQueries, *, is_stuck: bool, stood_still: datetime | None
) -> tuple[list[ranks.RankReading], set[str]]:
    """Every GPU or rank of the job with its numbers, and the job's nodes."""
    held, world = questions.held_gpus(), _world(questions.series("training_world_size"))
    # After a restart with fewer ranks the last ones are gone for good.
    told = {
        labels: value
        for labels, value in questions.ranks().items()
        if not world or (identity.rank_of(labels) or 0) < world
    }
    places = {labels.get("UUID", ""): labels for labels in [*held, *told] if labels.get("UUID")}
    nodes = {labels.get("Hostname", "") for labels in [*held, *told]} - {""}
    gpus = _gpus(questions, places, nodes, stood_still=stood_still, is_stuck=is_stuck)
    around, usual = _around(questions, nodes), questions.usual_watts()
    steps = {identity.rank_of(labels): value for labels, value in questions.compute().items()}
    alive = {identity.rank_of(labels) for labels in questions.series("training_last_step_timestamp_seconds")}
    rank_of = _ranks_of(places, told, gpus.indexes, world=world)
    found: list[ranks.RankReading] = []
    for uuid, labels in places.items():
        rank, node, numbers = rank_of.get(uuid), labels.get("Hostname", ""), gpus.numbers.get(uuid, {})
        found.append(
            ranks.RankReading(
                rank,
                node,
                labels.get("gpu") or gpus.indexes.get(uuid, ""),
                uuid,
                numbers.get("DCGM_FI_PROF_SM_ACTIVE"),
                numbers.get("DCGM_FI_DEV_GPU_UTIL"),
                numbers.get("DCGM_FI_DEV_POWER_USAGE"),
                steps.get(rank),
                is_missing=bool(alive) and rank is not None and rank not in alive,
                is_silent=uuid in gpus.silent,
                limit_watts=numbers.get("DCGM_FI_DEV_ENFORCED_POWER_LIMIT"),
                usual_watts=usual,
                link_bytes=around.links.get(uuid),
                cpu_share=around.cpus.get(node),
                network_bytes=around.network.get(node),
            )
        )
    placed = {one.rank for one in found}
    expected = {*range(world), *(rank for rank in alive if rank is not None)} if alive else set()
    found += [
        ranks.RankReading(rank, step_seconds=steps.get(rank), is_missing=rank not in alive)
        for rank in expected - placed
    ]
    return found, nodes


@dataclass(frozen=True, slots=True)
class _GpuReadings:
    """The numbers of each GPU by metric, its index on the node, and the GPUs that have stopped to report."""

    numbers: Mapping[str, Mapping[str, float]]
    indexes: Mapping[str, str]
    silent: Set[str]


def _gpus(
    questions: JobQueries,
    places: Mapping[str, Labels],
    nodes: set[str],
    *,
    stood_still: datetime | None,
    is_stuck: bool,
) -> _GpuReadings:
    numbers: dict[str, dict[str, float]] = {}
    indexes: dict[str, str] = {}
    for labels, value in (questions.gpus(nodes, is_stuck=is_stuck) if nodes else {}).items():
        uuid = labels.get("UUID", "")
        if uuid in places:
            numbers.setdefault(uuid, {})[labels.get("field", "")] = value
            indexes[uuid] = labels.get("gpu", "")
    is_blind = is_stuck and nodes and len(numbers) < len(places)
    before = {labels.get("UUID", "") for labels in questions.read_before(nodes, stood_still)} if is_blind else set()
    return _GpuReadings(numbers, indexes, before - numbers.keys())


def _world(told: Rows) -> int:
    """How many ranks the job says that it has; 0 where it does not say, or says what no job has."""
    largest = max(told.values(), default=0.0)
    return round(largest) if 0 <= largest <= LARGEST_WORLD else 0


@dataclass(frozen=True, slots=True)
class _NodeActivity:
    """Bytes over the links of each GPU, and CPUs and network of each node, where they are measured."""

    links: Mapping[str, float]
    cpus: Mapping[str, float]
    network: Mapping[str, float]


def _around(questions: JobQueries, nodes: set[str]) -> _NodeActivity:
    if not nodes:
        return _NodeActivity({}, {}, {})
    cpus, network = questions.by_node(nodes)
    return _NodeActivity(
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
        key=lambda uuid: jobs.rank_sort_key(
            places[uuid].get("workload", ""), places[uuid].get("Hostname", ""), indexes.get(uuid, "")
        ),
    )
    return {uuid: rank for rank, uuid in enumerate(ordered)}


def _may_be_in_step(seen: Sequence[ranks.RankReading]) -> bool:
    """Without a word of its own: GPUs that are alike busy, or of which some wait in a collective, train together."""
    if sum(one.state is not jobs.RankState.UNKNOWN for one in seen) < ranks.LEAST_GANG:
        return False
    waits = sum((one.utilisation_percent or 0.0) >= jobs.SPINS_PERCENT for one in seen)
    return waits > len(seen) / 2
