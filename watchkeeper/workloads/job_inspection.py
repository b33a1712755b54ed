"""Inspect the ranks of one job, and refine its state and its straggler.

`board` inspects jobs with alerts or slow ranks, `report` the requested job, so that list and page agree. `ranks`
decides what each rank does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from datetime import datetime

from watchkeeper.kit import clock
from watchkeeper.model import jobs
from watchkeeper.model.labels import Labels
from watchkeeper.workloads import efficiency, identity, job_queries, ranks
from watchkeeper.workloads.job_queries import JobQueries, Rows

# Several times the largest known jobs; a larger value is an error of the exporter.
MAX_WORLD_SIZE = 100_000
STUCK = (jobs.JobState.HUNG, jobs.JobState.STALLED)


@dataclass(frozen=True, slots=True)
class JobInspection:
    """The metrics and the compared ranks of a job, and the rank that the others wait for."""

    readings: Sequence[ranks.RankReading]
    nodes: set[str]
    ranks: tuple[jobs.Rank, ...]
    straggler: jobs.Straggler | None
    # When a rank finished the last step; None: the job does not report it.
    last_step_at: datetime | None = None


def inspect_job(queries: JobQueries, line: jobs.JobLine) -> JobInspection:
    is_stuck = line.state in STUCK
    last_steps = queries.series("training_last_step_timestamp_seconds")
    readings, nodes = _read_ranks(queries, last_steps, is_stuck=is_stuck, stalled_since=line.stalled_since)
    is_synchronous = bool(queries.training) or line.gpus <= 1 or is_stuck or _looks_synchronous(readings)
    compared, straggler = ranks.compare_ranks(readings, is_synchronous=is_synchronous, is_stuck=is_stuck)
    step_times = (last_steps or queries.ended_steps()).values()
    last_step_at = clock.from_unix_seconds(max(step_times)) if step_times else None
    return JobInspection(readings, nodes, compared, straggler, last_step_at)


def refine_line(
    line: jobs.JobLine, facts: efficiency.JobFacts, inspection: JobInspection
) -> tuple[jobs.JobLine, efficiency.JobFacts]:
    """Return the line and the facts of a job with a problem, refined by what its ranks show."""
    state, straggler = line.state, inspection.straggler or line.straggler
    if state is jobs.JobState.STALLED and len(inspection.ranks) > 1 and ranks.group_state(inspection.ranks) == "hung":
        state = jobs.JobState.HUNG
    elif state is jobs.JobState.RUNNING and straggler is not None and straggler.score is not None:
        state = jobs.JobState.SLOW
    facts = replace(facts, straggler=straggler)
    return replace(line, state=state, straggler=straggler, bound_by=efficiency.find_bottleneck(facts)), facts


def _read_ranks(
    queries: JobQueries, last_steps: Rows, *, is_stuck: bool, stalled_since: datetime | None
) -> tuple[list[ranks.RankReading], set[str]]:
    """Return the metrics of every GPU or rank of the job, and the job's nodes."""
    # 0 ranks if the job exports no number or an impossible one.
    exported_size = max(queries.series("training_world_size").values(), default=0.0)
    world_size = round(exported_size) if 0 <= exported_size <= MAX_WORLD_SIZE else 0
    allocated = queries.allocated_gpus()
    # After a restart with fewer ranks, the series of the last ones are outdated.
    rank_series = {
        labels: value
        for labels, value in queries.rank_series().items()
        if not world_size or (identity.read_rank(labels) or 0) < world_size
    }
    labels_by_uuid = {labels.get("UUID", ""): labels for labels in [*allocated, *rank_series] if labels.get("UUID")}
    nodes = {labels.get("Hostname", "") for labels in [*allocated, *rank_series]} - {""}
    numbers_by_uuid, indexes, silent = _read_gpus(
        queries, labels_by_uuid, nodes, stalled_since=stalled_since, is_stuck=is_stuck
    )
    (cpus, network), links = (queries.node_activity(nodes), queries.link_bytes(nodes)) if nodes else (({}, {}), {})
    usual_watts = queries.usual_watts()
    steps = {identity.read_rank(labels): value for labels, value in queries.step_compute_seconds().items()}
    alive = set(map(identity.read_rank, last_steps))
    rank_by_uuid = _assign_ranks(labels_by_uuid, rank_series, indexes, world_size=world_size)
    readings: list[ranks.RankReading] = []
    for uuid, labels in labels_by_uuid.items():
        rank, node, numbers = rank_by_uuid.get(uuid), labels.get("Hostname", ""), numbers_by_uuid.get(uuid, {})
        sm_active, utilisation, watts, limit_watts = (numbers.get(field) for field in job_queries.FIELDS)
        reading = ranks.RankReading(
            rank, node, labels.get("gpu") or indexes.get(uuid, ""), uuid, sm_active, utilisation, watts,
            steps.get(rank), is_missing=bool(alive) and rank is not None and rank not in alive,
            is_silent=uuid in silent, limit_watts=limit_watts, usual_watts=usual_watts, link_bytes=links.get(uuid),
            cpu_share=cpus.get(node), network_bytes=network.get(node),
        )  # fmt: skip
        readings.append(reading)
    placed_ranks = {reading.rank for reading in readings}
    expected_ranks = {*range(world_size), *(rank for rank in alive if rank is not None)} if alive else set()
    readings += [
        ranks.RankReading(rank, step_seconds=steps.get(rank), is_missing=rank not in alive)
        for rank in expected_ranks - placed_ranks
    ]
    return readings, nodes


def _read_gpus(
    queries: JobQueries,
    labels_by_uuid: Mapping[str, Labels],
    nodes: set[str],
    *,
    stalled_since: datetime | None,
    is_stuck: bool,
) -> tuple[Mapping[str, Mapping[str, float]], Mapping[str, str], Set[str]]:
    """Return the metrics of each GPU, its index on the node, and the GPUs that stopped reporting."""
    readings_by_uuid: dict[str, dict[str, float]] = {}
    indexes: dict[str, str] = {}
    for labels, value in (queries.gpu_means(nodes, is_stuck=is_stuck) if nodes else {}).items():
        uuid = labels.get("UUID", "")
        if uuid in labels_by_uuid:
            readings_by_uuid.setdefault(uuid, {})[labels.get("field", "")] = value
            indexes[uuid] = labels.get("gpu", "")
    has_gaps = is_stuck and nodes and len(readings_by_uuid) < len(labels_by_uuid)
    earlier = queries.gpus_before_stall(nodes, stalled_since) if has_gaps else {}
    silent = {labels.get("UUID", "") for labels in earlier} - readings_by_uuid.keys()
    return readings_by_uuid, indexes, silent


def _assign_ranks(
    labels_by_uuid: Mapping[str, Labels], rank_series: Rows, indexes: Mapping[str, str], *, world_size: int
) -> dict[str, int]:
    """Return the rank of each GPU: from its series, else by order if there is one GPU for each rank."""
    rank_by_uuid = {
        labels.get("UUID", ""): rank for labels in rank_series if (rank := identity.read_rank(labels)) is not None
    }
    if rank_by_uuid or world_size != len(labels_by_uuid):
        ranks_left = set(range(world_size)) - set(rank_by_uuid.values())
        gpus_left = [uuid for uuid in labels_by_uuid if uuid not in rank_by_uuid]
        # One rank and one GPU left: the rank stopped exporting on that GPU.
        if len(ranks_left) == len(gpus_left) == 1:
            rank_by_uuid[gpus_left[0]] = ranks_left.pop()
        return rank_by_uuid

    def sort_key(uuid: str) -> tuple[int, str, str, int]:
        labels = labels_by_uuid[uuid]
        return jobs.rank_sort_key(labels.get("workload", ""), labels.get("Hostname", ""), indexes.get(uuid, ""))

    return {uuid: rank for rank, uuid in enumerate(sorted(labels_by_uuid, key=sort_key))}


def _looks_synchronous(readings: Sequence[ranks.RankReading]) -> bool:
    """Whether the GPUs of a job without training series look synchronous: most are at full utilisation."""
    if sum(reading.state is not jobs.RankState.UNKNOWN for reading in readings) < ranks.MIN_GANG_SIZE:
        return False
    spinning = sum((reading.utilisation_percent or 0.0) >= jobs.WAIT_PERCENT for reading in readings)
    return spinning > len(readings) / 2
