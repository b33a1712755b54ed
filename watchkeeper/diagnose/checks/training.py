"""Find why a job stalls, slows down or diverges: a dead or slow rank, missing input, a link, a hot or broken GPU.

The checks read the metrics of the ranks and of the GPUs that the job holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from watchkeeper.diagnose.checks.findings import make_finding
from watchkeeper.diagnose.evidence import IncidentFacts, cause_of, event_evidence, is_hardware_fault, member_evidence
from watchkeeper.diagnose.place_context import (
    CLOCK_REASONS,
    CPU_SHARE,
    MEMORY_ERRORS,
    PORT_ERRORS,
    RANK_PLACES,
    TRAFFIC,
    USUAL_WATTS,
    WAIT_SHARE,
)
from watchkeeper.model import clock_reasons, jobs
from watchkeeper.model.diagnosis import DiagnosisStep, Evidence, Finding, RuledOut
from watchkeeper.model.fleet import Place
from watchkeeper.model.labels import Labels
from watchkeeper.query import gpu_errors

FAMILIES = ("nccl", "training")
LAST_STEP, COMPUTE = "training_last_step_timestamp_seconds", "training_step_compute_seconds"
WORLD = "training_world_size"
STALLED = "training_stalled"
UTILISATION, SM_ACTIVE = "DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_PROF_SM_ACTIVE"
POWER, POWER_LIMIT, CLOCK = "DCGM_FI_DEV_POWER_USAGE", "DCGM_FI_DEV_ENFORCED_POWER_LIMIT", "DCGM_FI_DEV_SM_CLOCK"
LINK_NAMES = {"nvlink": "NVLink", "pcie": "PCIe", "infiniband": "InfiniBand"}
# With two GPUs, it is unknown which of them is the outlier.
MIN_GANG = 3
# From packs/rules/training.yaml: how much longer a rank computes than the fastest quarter, over minutes.
SLOW_RATIO = "watchkeeper:training_rank_slow:ratio"
# Without that rule: a rank that computes 1.5 times as long as the median is a straggler.
LATE_FACTOR = 1.5
# As in packs/rules/training.yaml.
STARVED_SHARE = 0.2
# The metrics of a rank are scraped every few seconds; steps of large models take as long.
STALE_STEP_SECONDS = 15.0


def rank_died(facts: IncidentFacts) -> Finding | None:
    """Fewer ranks report than the job has, and the others complete no step."""
    missing, age = missing_ranks(facts), step_age_seconds(facts)
    if facts.incident.family not in FAMILIES or not missing or age is None or age < STALE_STEP_SECONDS:
        return None
    ranks = _ranks_text(missing)
    reporting = len({labels.get("rank") for labels, _ in facts.context.rows(LAST_STEP)})
    text = f"{ranks} stopped reporting; the other {reporting} completed their last step {age:.0f} s ago"
    return make_finding(
        facts,
        "nccl_rank_died",
        confidence=0.93,
        evidence=(_evidence(facts, LAST_STEP, text), *_member_evidence(facts)),
        why=f"{ranks.capitalize()} died; all other ranks wait in a collective.",
        steps=(DiagnosisStep(f"Read the end of the log of {ranks}; errors of the other ranks are consequences"),),
        ruled_out=(_rule_out_starvation(facts), _rule_out_straggler(facts)),
    )


def hung(facts: IncidentFacts) -> Finding | None:
    """The job makes no progress: compare its GPUs and name the one that differs."""
    gpu_states = [(labels, state) for labels, state in _gpu_states(facts) if state is not jobs.RankState.UNKNOWN]
    if facts.incident.cause != STALLED or facts.place.node is not None or len(gpu_states) < MIN_GANG:
        return None
    text, outlier = _compare_gpus(gpu_states)
    if not text:
        return None
    node_evidence = _outlier_node_evidence(facts) if outlier is None else ()
    place = _place(facts, outlier) if outlier is not None else node_evidence[0].place if node_evidence else None
    name = facts.names(place) if place is not None else "each node"
    waiting_uuids = {labels.get("UUID", "") for labels, state in gpu_states if state is jobs.RankState.WAITS}
    outlier_text, why = "", "All GPUs of the job are alike, so they do not show which rank is the cause."
    if outlier is not None:
        percent = max(value for labels, value in facts.context.rows(UTILISATION) if labels == outlier)
        outlier_text = f"; {name} differs with {percent:.0f} % utilisation"
        reason = ", which did not enter the collective" if len(waiting_uuids) > 1 else ""
        why = f"All other ranks wait for the rank on {name}{reason}."
    return make_finding(
        facts,
        STALLED,
        confidence=0.85 if outlier is not None else 0.75,
        evidence=(
            _evidence(facts, UTILISATION, f"{text}{outlier_text}"),
            *_power_evidence(facts, waiting_uuids),
            *_link_evidence(facts),
            *node_evidence,
            *_member_evidence(facts),
        ),
        why=why,
        steps=(DiagnosisStep(f"Dump the stack of the process on {name}", "py-spy dump --pid PID"),),
        ruled_out=(_rule_out_starvation(facts), _rule_out_dead_rank(facts)),
    )


def _gpu_states(facts: IncidentFacts) -> list[tuple[Labels, jobs.RankState]]:
    active, watts, limits = (
        {labels.get("UUID", ""): value for labels, value in facts.context.rows(field)}
        for field in (SM_ACTIVE, POWER, POWER_LIMIT)
    )
    usual = facts.context.max_value(USUAL_WATTS)
    busy = {labels.get("UUID", ""): (labels, value) for labels, value in facts.context.rows(UTILISATION)}
    return [
        (labels, jobs.GpuActivity(value, active.get(uuid), watts.get(uuid), limits.get(uuid), usual).state)
        for uuid, (labels, value) in busy.items()
    ]


def _compare_gpus(gpu_states: Sequence[tuple[Labels, jobs.RankState]]) -> tuple[str, Labels | None]:
    """A text about what most GPUs do, and the GPU that differs; empty if this is no pattern of a hung job."""
    spin, idle, work = (
        [labels for labels, state in gpu_states if state is expected]
        for expected in (jobs.RankState.WAITS, jobs.RankState.IDLE, jobs.RankState.WORKS)
    )
    count, max_outliers = len(gpu_states), max(1, len(gpu_states) // 4)
    if len(spin) == count:
        return f"all {count} GPUs wait in a collective", None
    if len(idle) == count:
        return f"all {count} GPUs are idle", None
    if len(idle) + len(work) <= max_outliers:
        return f"{len(spin)} of {count} GPUs wait in a collective", (idle or work)[0]
    if len(spin) + len(work) == 1:
        return f"{len(idle)} of {count} GPUs are idle", (spin or work)[0]
    return "", None


def _link_evidence(facts: IncidentFacts) -> tuple[Evidence, ...]:
    """Evidence that there is no traffic between the GPUs, if it is measured."""
    bytes_by_link = {labels.get("over", ""): value for labels, value in facts.context.rows(TRAFFIC)}
    if not bytes_by_link or max(bytes_by_link.values()) >= jobs.ACTIVE_LINK_BYTES:
        return ()
    parts = (f"{LINK_NAMES.get(link, link)} {value / 1e6:.0f} MB/s" for link, value in sorted(bytes_by_link.items()))
    return (_evidence(facts, TRAFFIC, f"no traffic between the GPUs: at most {', '.join(parts)}"),)


def _outlier_node_evidence(facts: IncidentFacts) -> tuple[Evidence, ...]:
    """Evidence of a node whose CPU use differs from the other nodes."""
    cpus = _cpu_shares(facts)
    outlier = jobs.find_outlier_node(cpus, min_difference=jobs.OUTLIER_CPU_SHARE)
    return () if outlier is None else _cpu_evidence(facts, outlier, cpus[outlier], others=median(cpus.values()))


def _cpu_shortage_evidence(facts: IncidentFacts, node: str) -> tuple[Evidence, ...]:
    """Evidence that a node has no free CPUs while the other nodes of the job have."""
    cpus = _cpu_shares(facts)
    others = [share for name, share in cpus.items() if name != node]
    return _cpu_evidence(facts, node, cpus[node], others=median(others)) if jobs.is_short_of_cpu(node, cpus) else ()


def _cpu_evidence(facts: IncidentFacts, node: str, share: float, *, others: float) -> tuple[Evidence, ...]:
    is_load = any(labels.get("Hostname") for labels, _ in facts.context.rows(CPU_SHARE))
    source = "watchkeeper_host_load" if is_load else "node_cpu_seconds_total"
    text = f"{node} keeps {share:.0%} of its CPUs busy, the other nodes {others:.0%}"
    return (Evidence(source, text, at=facts.at, place=Place(facts.place.cluster, node=node)),)


def _cpu_shares(facts: IncidentFacts) -> dict[str, float]:
    return {labels.get("instance", "").partition(":")[0]: value for labels, value in facts.context.rows(CPU_SHARE)}


def straggler(facts: IncidentFacts) -> Finding | None:
    """One or a few ranks compute much longer per step than the median rank."""
    seconds = compute_seconds(facts)
    if facts.incident.family not in FAMILIES or len(seconds) < 2 or missing_ranks(facts):
        return None
    late = late_ranks(facts)
    if not late or len(late) > max(1, len(seconds) // 4):
        return None
    worst = late[-1]
    middle = f"the median of {len(seconds)} ranks is {median(seconds.values()):.3g} s"
    text = f"rank {worst} computes {seconds.get(worst, 0.0):.3g} s per step, {middle}"
    gpu = gpu_of_rank(facts, int(worst))
    node = gpu.node or "" if gpu is not None else ""
    cpu = _cpu_shortage_evidence(facts, node)
    do, command = "Compare clocks and temperature of its GPU with the other GPUs", "nvidia-smi -q -d PERFORMANCE"
    if cpu:
        do, command = f"List the processes that use the CPUs of {node}", jobs.TOP_CPU_COMMAND
    return make_finding(
        facts,
        "nccl_timeout_straggler",
        confidence=0.92,
        evidence=(
            _evidence(facts, COMPUTE, text),
            *cpu,
            *_gpu_evidence(facts, gpu),
            *_member_evidence(facts),
        ),
        why=f"Late at every collective: {_ranks_text(late)}{', short of CPU' if cpu else ''}. All other ranks wait.",
        steps=(
            DiagnosisStep(f"Check rank {worst}" + (f" on {facts.names(gpu)}" if gpu else "")),
            DiagnosisStep(do, command),
        ),
        ruled_out=(
            _rule_out_starvation(facts),
            RuledOut("ib_link_degraded", f"{len(seconds) - len(late)} ranks are not slow; a slow fabric slows all"),
        ),
    )


def diverged(facts: IncidentFacts) -> Finding | None:
    """The loss or gradient diverged: show faults of the job's GPUs at that time, or that there were none."""
    if facts.incident.cause != "training_diverged" or facts.place.node is not None:
        return None
    job_uuids = {labels.get("UUID", "") for labels, _ in facts.context.rows(UTILISATION)} - {""}
    job_events = [event for event in facts.events if event.place.gpu in job_uuids]
    gpu_evidence = (*map(event_evidence, job_events[:4]), *_gpu_fault_evidence(facts, job_uuids))
    is_clean = not gpu_evidence
    if is_clean and job_uuids:
        gpu_evidence = (_evidence(facts, "kernel logs and DCGM", _no_fault_text(facts, job_uuids)),)
    steps = (DiagnosisStep("Test the GPUs for wrong results before the next run", "watchkeeper diag -r 2"),)
    return make_finding(
        facts,
        "training_diverged",
        confidence=0.8 if gpu_evidence else 0.7,
        evidence=(*_member_evidence(facts), *gpu_evidence),
        steps=() if is_clean else steps,
    )


def starved(facts: IncidentFacts) -> Finding | None:
    """Ranks wait for input a fifth of the time or more."""
    share = facts.context.max_value(WAIT_SHARE)
    if facts.incident.family not in FAMILIES or share is None or share < STARVED_SHARE:
        return None
    text = f"ranks wait for input {share:.0%} of the time"
    return make_finding(
        facts,
        "data_loader_starved",
        confidence=0.91,
        evidence=(_evidence(facts, "training_data_wait_seconds_total", text), *_member_evidence(facts)),
        steps=(DiagnosisStep("Dump the stacks of the data loader workers", "py-spy dump --pid PID"),),
        ruled_out=(_rule_out_straggler(facts), _rule_out_dead_rank(facts)),
    )


def slow_gpu(facts: IncidentFacts) -> Finding | None:
    """A GPU of the job is slowed down by heat or power, which slows down the whole job."""
    rows = facts.context.rows(gpu_errors.CLOCK_REASONS)
    throttled = [(labels, value) for labels, value in rows if gpu_errors.is_throttling(value)]
    if facts.incident.family not in FAMILIES or not throttled:
        return None
    labels, value = throttled[0]
    place, bits = _place(facts, labels), int(value)
    text = f"{facts.names(place)}: clocks event reasons 0x{bits:x}; {len(throttled)} of the job's GPUs are throttled"
    cause = "thermal_throttle" if len(throttled) == 1 else "cooling_failure"
    cause = "power_brake" if bits & clock_reasons.POWER_BRAKE else cause
    return make_finding(
        facts,
        cause,
        place=place if cause == "thermal_throttle" else place.whole_node,
        confidence=0.8,
        evidence=(_evidence(facts, gpu_errors.CLOCK_REASONS, text), *_member_evidence(facts)),
        ruled_out=(_rule_out_starvation(facts),),
    )


def broken_gpu(facts: IncidentFacts) -> Finding | None:
    """The kernel log of a node of the job has a hardware fault of a GPU, which stops the whole job."""
    faults = [event for event in facts.events if is_hardware_fault(event)]
    if facts.incident.family not in FAMILIES or facts.place.node is not None or not faults:
        return None
    job_uuids = {labels.get("UUID") for labels, _ in facts.context.rows(UTILISATION)}
    first = min(faults, key=lambda event: event.at)
    is_held = first.place.gpu in job_uuids
    return make_finding(
        facts,
        cause_of(first) or "unknown",
        place=first.place,
        confidence=0.95 if is_held else 0.75,
        evidence=(*map(event_evidence, faults[:4]), *_member_evidence(facts)),
        why=f"{facts.names(first.place)}, {'held by the job' if is_held else 'on a node of the job'}, failed first.",
        ruled_out=(_rule_out_starvation(facts),),
    )


def slow_fabric(facts: IncidentFacts) -> Finding | None:
    """A port of the job's nodes is down or has symbol errors, and no rank is missing."""
    ports = facts.context.rows(PORT_ERRORS)
    if facts.incident.family not in FAMILIES or not ports or missing_ranks(facts):
        return None
    labels, value = ports[0]
    node = labels.get("instance", "").rsplit(":", 1)[0]
    port = f"{labels.get('device', '?')}/{labels.get('port', '?')}"
    text = f"port {port} of {node} is down or has symbol errors ({value:g})"
    return make_finding(
        facts,
        "ib_link_degraded",
        place=Place(facts.place.cluster, node=node) if node else facts.place,
        confidence=0.84,
        evidence=(_evidence(facts, "node_infiniband_symbol_error_total", text), *_member_evidence(facts)),
        ruled_out=(_rule_out_straggler(facts), _rule_out_starvation(facts), _rule_out_dead_rank(facts)),
    )


def missing_ranks(facts: IncidentFacts) -> list[str]:
    world = facts.context.max_value(WORLD)
    reporting = {labels.get("rank") for labels, _ in facts.context.rows(LAST_STEP)}
    if world is None or not reporting:
        return []
    return [str(rank) for rank in range(round(world)) if str(rank) not in reporting]


def compute_seconds(facts: IncidentFacts) -> dict[str, float]:
    return {labels.get("rank", "0"): value for labels, value in facts.context.rows(COMPUTE)}


def late_ranks(facts: IncidentFacts) -> list[str]:
    """The ranks that the others wait for, the slowest last."""
    slow = {labels.get("rank", "0"): value for labels, value in facts.context.rows(SLOW_RATIO)}
    if not slow:
        seconds = compute_seconds(facts)
        middle = median(seconds.values()) if seconds else 0.0
        slow = {rank: taken for rank, taken in seconds.items() if taken > LATE_FACTOR * middle}
    return sorted(slow, key=slow.__getitem__)


def step_age_seconds(facts: IncidentFacts) -> float | None:
    last = facts.context.max_value(LAST_STEP)
    return None if last is None else max(0.0, facts.at.timestamp() - last)


def gpu_of_rank(facts: IncidentFacts, rank: int) -> Place | None:
    """The GPU of a rank, as it reports or by the order of the job's GPUs; None if GPUs are missing."""
    placed = [labels for labels, _ in facts.context.rows(RANK_PLACES, rank=str(rank)) if labels.get("Hostname")]
    if placed:
        return _place(facts, placed[-1])
    rows = {labels.get("UUID", ""): labels for labels, _ in facts.context.rows(UTILISATION)}
    world = facts.context.max_value(WORLD)
    if world is None or len(rows) != round(world):
        return None

    keys = ("pod", "Hostname", "gpu")
    ordered = sorted(rows.values(), key=lambda labels: jobs.rank_sort_key(*(labels.get(key, "") for key in keys)))
    return _place(facts, ordered[rank]) if rank < len(ordered) else None


def _no_fault_text(facts: IncidentFacts, job_uuids: set[str]) -> str:
    """A text about the checks without a fault, and about the faults that no exporter reports."""
    context = facts.context
    rows_by_fault = {"memory errors": context.rows(MEMORY_ERRORS), "throttling": context.rows(CLOCK_REASONS)}
    checked, unchecked = ["Xids"], list[str]()
    for fault, rows in rows_by_fault.items():
        is_exported = any(labels.get("UUID", "") in job_uuids for labels, _ in rows)
        (checked if is_exported else unchecked).append(fault)
    unknown = f"; no exporter reports {' or '.join(unchecked)}" if unchecked else ""
    faults = " or ".join(part for part in (", ".join(checked[:-1]), checked[-1]) if part)
    return f"none of the {len(job_uuids)} GPUs had {faults} within {context.window_minutes} min{unknown}"


def _gpu_fault_evidence(facts: IncidentFacts, job_uuids: set[str]) -> tuple[Evidence, ...]:
    errors: list[Evidence] = []
    for labels, count in facts.context.rows(MEMORY_ERRORS):
        if labels.get("UUID", "") in job_uuids and count > 0:
            place, field = _place(facts, labels), labels.get("field", "")
            _, error_name = gpu_errors.MEMORY_ERRORS[field]
            text = f"{facts.names(place)}: {count:.0f} {error_name} within {facts.context.window_minutes} min"
            errors.append(Evidence(field, text, at=facts.at, place=place))
    throttled: list[Evidence] = []
    for labels, value in facts.context.rows(CLOCK_REASONS):
        if labels.get("UUID", "") in job_uuids and gpu_errors.is_throttling(value):
            place = _place(facts, labels)
            text = f"{facts.names(place)}: throttled, clocks event reasons 0x{int(value):x}"
            throttled.append(Evidence(gpu_errors.CLOCK_REASONS, text, at=facts.at, place=place))
    return (*errors[:4], *throttled[:4])


def _place(facts: IncidentFacts, labels: Labels) -> Place:
    return Place(facts.place.cluster, node=labels.get("Hostname") or "?", gpu=labels.get("UUID") or None)


def _gpu_evidence(facts: IncidentFacts, gpu: Place | None) -> tuple[Evidence, ...]:
    clock = facts.context.max_value(CLOCK, UUID=gpu.gpu or "") if gpu is not None else None
    if gpu is None or clock is None:
        return ()
    return (_evidence(facts, CLOCK, f"{facts.names(gpu)}: SM clock {clock:g} MHz"),)


def _power_evidence(facts: IncidentFacts, uuids: set[str]) -> tuple[Evidence, ...]:
    """Evidence of the power of waiting GPUs: far less than under load."""
    watts = [value for labels, value in facts.context.rows(POWER) if labels.get("UUID", "") in uuids]
    limit = facts.context.max_value(POWER_LIMIT)
    of = f", the limit is {limit:.0f} W" if limit else ""
    return (_evidence(facts, POWER, f"waiting GPUs draw {min(watts):.0f} to {max(watts):.0f} W{of}"),) if watts else ()


def _evidence(facts: IncidentFacts, source: str, text: str) -> Evidence:
    return Evidence(source, text, at=facts.at, place=facts.place)


def _member_evidence(facts: IncidentFacts) -> tuple[Evidence, ...]:
    return tuple(member_evidence(member) for member in facts.incident.members[:4])


def _rule_out_starvation(facts: IncidentFacts) -> RuledOut | None:
    share = facts.context.max_value(WAIT_SHARE)
    if share is None or share >= STARVED_SHARE:
        return None
    return RuledOut("data_loader_starved", f"ranks wait for input {share:.0%} of the time, below {STARVED_SHARE:.0%}")


def _rule_out_straggler(facts: IncidentFacts) -> RuledOut | None:
    seconds = compute_seconds(facts)
    if len(seconds) < 2 or late_ranks(facts):
        return None
    return RuledOut("nccl_timeout_straggler", f"all {len(seconds)} ranks compute about the same time")


def _rule_out_dead_rank(facts: IncidentFacts) -> RuledOut | None:
    if facts.context.max_value(WORLD) is None or missing_ranks(facts):
        return None
    return RuledOut("nccl_rank_died", f"all {facts.context.max_value(WORLD):g} ranks report")


def _ranks_text(ranks: list[str]) -> str:
    more = f" and {len(ranks) - 4} more" if len(ranks) > 4 else ""
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(ranks[:4])}{more}"
