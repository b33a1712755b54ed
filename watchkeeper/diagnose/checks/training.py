"""Jobs that stall, slow down or diverge: a rank that died or is late, input that does not come, a link, a hot GPU.

Everything is read from what the ranks say about themselves and from the GPUs that the job holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from watchkeeper.diagnose.checks import exclusions
from watchkeeper.diagnose.checks.findings import make_finding
from watchkeeper.diagnose.evidence import IncidentFacts, cause_of, event_evidence, is_hardware_fault, member_evidence
from watchkeeper.diagnose.place_context import (
    CPU_SHARE,
    GREW,
    RANK_PLACES,
    REASONS,
    TRAFFIC,
    USUAL_WATTS,
)
from watchkeeper.model import clock_reasons, jobs
from watchkeeper.model.diagnosis import DiagnosisStep, Evidence, Finding, RuledOut
from watchkeeper.model.fleet import Place
from watchkeeper.model.labels import Labels
from watchkeeper.query import gpu_errors

FAMILIES = ("nccl", "training")
LAST_STEP, COMPUTE, WORLD = (
    "training_last_step_timestamp_seconds",
    "training_step_compute_seconds",
    "training_world_size",
)
WAIT = "data_wait_share"
STALLED = "training_stalled"
UTILISATION, SM_ACTIVE = "DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_PROF_SM_ACTIVE"
POWER, POWER_LIMIT = "DCGM_FI_DEV_POWER_USAGE", "DCGM_FI_DEV_ENFORCED_POWER_LIMIT"
OVER = {"nvlink": "NVLink", "pcie": "PCIe", "infiniband": "InfiniBand"}
# Of two GPUs of which one spins nobody knows who is odd.
LEAST_GANG = 3
# What packs/rules/training.yaml says of ranks that compute longer than the quicker quarter: by how much, over minutes.
SLOW = "watchkeeper:training_rank_slow:ratio"
# Where that rule is not run, one look has to do: half as much again as the middle rank is no chance.
LATE_FACTOR = 1.5
# As in packs/rules/training.yaml: a fifth of the time without input.
STARVED_SHARE = 0.2
# A rank's page is read every few seconds; steps of large models take as long.
STALE_STEP_SECONDS = 15.0


def rank_died(facts: IncidentFacts) -> Finding | None:
    """Fewer ranks report than the job has, and the others finish no step."""
    gone, age = missing_ranks(facts), step_age_seconds(facts)
    if facts.incident.family not in FAMILIES or not gone or age is None or age < STALE_STEP_SECONDS:
        return None
    ranks = _listed(gone)
    there = len({labels.get("rank") for labels, _ in facts.context.rows(LAST_STEP)})
    falls = "fall" if len(gone) > 1 else "falls"
    said = f"{ranks} {falls} silent; the other {there} finished their last step {age:.0f} s ago"
    return make_finding(
        facts,
        "nccl_rank_died",
        place=facts.place,
        confidence=0.93,
        evidence=(_seen(facts, LAST_STEP, said), *_told(facts)),
        why=f"{ranks.capitalize()} ended, and all others wait in a collective.",
        steps=(DiagnosisStep(f"Read the log of {ranks} from its end backwards; what the others say only follows"),),
        ruled_out=exclusions.against(_fed(facts), _even(facts)),
    )


def hung(facts: IncidentFacts) -> Finding | None:
    """What the GPUs of a job that does not get on show side by side, and the one that does not as the others do."""
    gang = [(labels, state) for labels, state in _states(facts) if state is not jobs.RankState.UNKNOWN]
    if facts.incident.cause != STALLED or facts.place.node is not None or len(gang) < LEAST_GANG:
        return None
    said, odd = _side_by_side(gang)
    if not said:
        return None
    node = _odd_node(facts) if odd is None else None
    place = _place(facts, odd) if odd is not None else node.place if node is not None else None
    name = facts.names(place) if place is not None else "each node"
    waiting = {labels.get("UUID", "") for labels, state in gang if state is jobs.RankState.WAITS}
    shows, why = "", "The ranks do alike, so none of them can be named by its GPU."
    if odd is not None:
        percent = max(value for labels, value in facts.context.rows(UTILISATION) if labels == odd)
        shows = f"; {name} shows {percent:.0f} % and does not"
        why = f"All others wait for the rank on {name}{', which never came' if len(waiting) > 1 else ''}."
    return make_finding(
        facts,
        STALLED,
        place=facts.place,
        confidence=0.85 if odd is not None else 0.75,
        evidence=(
            _seen(facts, UTILISATION, f"{said}{shows}"),
            *_draw(facts, waiting),
            *_still_links(facts),
            *(() if node is None else (node,)),
            *_told(facts),
        ),
        why=why,
        steps=(DiagnosisStep(f"See where the program of {name} stands", "py-spy dump --pid PID"),),
        ruled_out=exclusions.against(_fed(facts), _whole(facts)),
    )


def _states(facts: IncidentFacts) -> list[tuple[Labels, jobs.RankState]]:
    def by_gpu(field: str) -> dict[str, float]:
        return {labels.get("UUID", ""): value for labels, value in facts.context.rows(field)}

    active, watts, limits = (by_gpu(field) for field in (SM_ACTIVE, POWER, POWER_LIMIT))
    usual = facts.context.max_value(USUAL_WATTS)
    busy = {labels.get("UUID", ""): (labels, value) for labels, value in facts.context.rows(UTILISATION)}
    return [
        (labels, jobs.GpuActivity(value, active.get(uuid), watts.get(uuid), limits.get(uuid), usual).state)
        for uuid, (labels, value) in busy.items()
    ]


def _side_by_side(gang: Sequence[tuple[Labels, jobs.RankState]]) -> tuple[str, Labels | None]:
    """What most of them do, and the one that does not; empty where they do not look like a job that is stuck."""
    spin, idle, work = (
        [labels for labels, state in gang if state is wanted]
        for wanted in (jobs.RankState.WAITS, jobs.RankState.IDLE, jobs.RankState.WORKS)
    )
    count, few = len(gang), max(1, len(gang) // 4)
    if len(spin) == count:
        return f"all {count} GPUs spin in a collective", None
    if len(idle) == count:
        return f"none of the {count} GPUs does anything", None
    if len(idle) + len(work) <= few:
        return f"{len(spin)} of {count} GPUs spin in a collective", (idle or work)[0]
    if len(spin) + len(work) == 1:
        return f"{len(idle)} of {count} GPUs do nothing", (spin or work)[0]
    return "", None


def _still_links(facts: IncidentFacts) -> tuple[Evidence, ...]:
    """That nothing moves between the GPUs, where links are measured."""
    told = {labels.get("over", ""): value for labels, value in facts.context.rows(TRAFFIC)}
    if not told or max(told.values()) >= jobs.MOVES_BYTES:
        return ()
    parts = ", ".join(f"{OVER.get(over, over)} {value / 1e6:.0f} MB/s" for over, value in sorted(told.items()))
    return (_seen(facts, TRAFFIC, f"nothing moves between them: at most {parts}"),)


def _odd_node(facts: IncidentFacts) -> Evidence | None:
    """A node whose CPUs do something else than those of the others."""
    cpus = _cpus(facts)
    odd = jobs.find_outlier_node(cpus, least=jobs.ODD_CPU_SHARE)
    if odd is None:
        return None
    said = f"{odd} keeps {cpus[odd]:.0%} of its CPUs busy, the others {median(cpus.values()):.0%}"
    return Evidence(_cpu_source(facts), said, at=facts.at, place=Place(facts.place.cluster, node=odd))


def _short_of_cpu(facts: IncidentFacts, node: str) -> Evidence | None:
    """That the CPUs of a node are taken, where those of the job's other nodes have room."""
    cpus = _cpus(facts)
    if not jobs.is_short_of_cpu(node, cpus):
        return None
    others = median(share for name, share in cpus.items() if name != node)
    said = f"{node} keeps {cpus[node]:.0%} of its CPUs busy, the others {others:.0%}"
    return Evidence(_cpu_source(facts), said, at=facts.at, place=Place(facts.place.cluster, node=node))


def _cpu_source(facts: IncidentFacts) -> str:
    is_load = any(labels.get("Hostname") for labels, _ in facts.context.rows(CPU_SHARE))
    return "watchkeeper_host_load" if is_load else "node_cpu_seconds_total"


def _cpus(facts: IncidentFacts) -> dict[str, float]:
    return {labels.get("instance", "").partition(":")[0]: value for labels, value in facts.context.rows(CPU_SHARE)}


def straggler(facts: IncidentFacts) -> Finding | None:
    """One rank, or a few, compute much longer than the middle one before they wait."""
    seconds = compute_seconds(facts)
    if facts.incident.family not in FAMILIES or len(seconds) < 2 or missing_ranks(facts):
        return None
    late = late_ranks(facts)
    if not late or len(late) > max(1, len(seconds) // 4):
        return None
    worst = late[-1]
    said = (
        f"rank {worst} computes {seconds.get(worst, 0.0):.3g} s a step, "
        f"the middle of {len(seconds)} ranks {median(seconds.values()):.3g} s"
    )
    gpu = gpu_of_rank(facts, int(worst))
    node = gpu.node or "" if gpu is not None else ""
    cpu = _short_of_cpu(facts, node)
    look = (
        DiagnosisStep("Compare clocks and temperature of its GPU with its neighbours'", "nvidia-smi -q -d PERFORMANCE")
        if cpu is None
        else DiagnosisStep(f"See what takes the CPUs of {node}", jobs.WHO_TAKES_CPUS)
    )
    return make_finding(
        facts,
        "nccl_timeout_straggler",
        place=facts.place,
        confidence=0.92,
        evidence=(
            _seen(facts, COMPUTE, said),
            *(() if cpu is None else (cpu,)),
            *_gpu_evidence(facts, gpu),
            *_told(facts),
        ),
        why=f"Late at every collective: {_listed(late)}{', short of CPU' if cpu else ''}. All others wait.",
        steps=(DiagnosisStep(f"Look at rank {worst}" + (f", which runs on {facts.names(gpu)}" if gpu else "")), look),
        ruled_out=exclusions.against(
            _fed(facts),
            RuledOut("ib_link_degraded", f"the other {len(seconds) - len(late)} ranks keep pace; a fabric slows all"),
        ),
    )  # fmt: skip


def diverged(facts: IncidentFacts) -> Finding | None:
    """A loss or gradient that went wrong, with what the GPUs of its ranks did around then; nothing is an answer too."""
    if facts.incident.cause != "training_diverged" or facts.place.node is not None:
        return None
    held = {labels.get("UUID", "") for labels, _ in facts.context.rows("DCGM_FI_DEV_GPU_UTIL")} - {""}
    theirs = [event for event in facts.events if event.place.gpu in held]
    seen = (*(event_evidence(event) for event in theirs[:4]), *_memory_errors(facts, held), *_held_down(facts, held))
    is_clean = not seen
    if is_clean and held:
        seen = (_seen(facts, "kernel logs and DCGM", _nothing_wrong(facts, held)),)
    steps = (
        DiagnosisStep("Rule out one bad GPU before the next run: compare the ranks' results", "watchkeeper diag -r 2"),
    )
    return make_finding(
        facts,
        "training_diverged",
        place=facts.place,
        confidence=0.8 if seen else 0.7,
        evidence=(*_told(facts), *seen),
        steps=() if is_clean else steps,
    )


def starved(facts: IncidentFacts) -> Finding | None:
    """A fifth of the time or more passes without input."""
    share = facts.context.max_value(WAIT)
    if facts.incident.family not in FAMILIES or share is None or share < STARVED_SHARE:
        return None
    said = f"{share:.0%} of the time passes in waiting for input"
    return make_finding(
        facts,
        "data_loader_starved",
        place=facts.place,
        confidence=0.91,
        evidence=(_seen(facts, "training_data_wait_seconds_total", said), *_told(facts)),
        steps=(DiagnosisStep("See what the loader's workers do", "py-spy dump --pid PID"),),
        ruled_out=exclusions.against(_even(facts), _whole(facts)),
    )


def slow_gpu(facts: IncidentFacts) -> Finding | None:
    """One GPU of the job is held back by heat or power, and a gang runs as fast as its slowest."""
    slowed = [
        (labels, value)
        for labels, value in facts.context.rows(gpu_errors.CLOCK_REASONS)
        if gpu_errors.is_throttled(value)
    ]
    if facts.incident.family not in FAMILIES or not slowed:
        return None
    labels, value = slowed[0]
    place = _place(facts, labels)
    is_braked = bool(int(value) & clock_reasons.POWER_BRAKE)
    said = (
        f"{facts.names(place)} has the clocks event reasons 0x{int(value):x}; {len(slowed)} of the job's GPUs have one"
    )
    cause = "power_brake" if is_braked else "thermal_throttle" if len(slowed) == 1 else "cooling_failure"
    node = Place(place.cluster, node=place.node)
    return make_finding(
        facts,
        cause,
        place=place if cause == "thermal_throttle" else node,
        confidence=0.8,
        evidence=(_seen(facts, gpu_errors.CLOCK_REASONS, said), *_told(facts)),
        ruled_out=exclusions.against(_fed(facts)),
    )


def broken_gpu(facts: IncidentFacts) -> Finding | None:
    """A GPU of the job broke: the kernel of its node said so, and a gang does not outlive one of its GPUs."""
    grave = [event for event in facts.events if is_hardware_fault(event)]
    if facts.incident.family not in FAMILIES or facts.place.node is not None or not grave:
        return None
    held = {labels.get("UUID") for labels, _ in facts.context.rows("DCGM_FI_DEV_GPU_UTIL")}
    first = min(grave, key=lambda event: event.at)
    is_ours = first.place.gpu in held
    return make_finding(
        facts,
        cause_of(first) or "unknown",
        place=first.place,
        confidence=0.95 if is_ours else 0.75,
        evidence=(*(event_evidence(event) for event in grave[:4]), *_told(facts)),
        why=f"{facts.names(first.place)}, {'which the job holds' if is_ours else 'on a node of the job'}, broke first.",
        ruled_out=exclusions.against(_fed(facts)),
    )


def slow_fabric(facts: IncidentFacts) -> Finding | None:
    """A port of the job's nodes is down or loses symbols, and no single rank is late."""
    ports = facts.context.rows("ib_errors_per_second")
    if facts.incident.family not in FAMILIES or not ports or missing_ranks(facts):
        return None
    labels, value = ports[0]
    node = labels.get("instance", "").rsplit(":", 1)[0]
    said = f"port {labels.get('device', '?')}/{labels.get('port', '?')} of {node} is down or loses symbols ({value:g})"
    return make_finding(
        facts,
        "ib_link_degraded",
        place=Place(facts.place.cluster, node=node) if node else facts.place,
        confidence=0.84,
        evidence=(_seen(facts, "node_infiniband_symbol_error_total", said), *_told(facts)),
        ruled_out=exclusions.against(_even(facts), _fed(facts), _whole(facts)),
    )


def missing_ranks(facts: IncidentFacts) -> list[str]:
    world = facts.context.max_value(WORLD)
    there = {labels.get("rank") for labels, _ in facts.context.rows(LAST_STEP)}
    return [] if world is None or not there else [str(rank) for rank in range(round(world)) if str(rank) not in there]


def compute_seconds(facts: IncidentFacts) -> dict[str, float]:
    return {labels.get("rank", "0"): value for labels, value in facts.context.rows(COMPUTE)}


def late_ranks(facts: IncidentFacts) -> list[str]:
    """Ranks that the others wait for, the latest last."""
    slow = {labels.get("rank", "0"): value for labels, value in facts.context.rows(SLOW)}
    if not slow:
        seconds = compute_seconds(facts)
        middle = median(seconds.values()) if seconds else 0.0
        slow = {rank: taken for rank, taken in seconds.items() if taken > LATE_FACTOR * middle}
    return sorted(slow, key=slow.__getitem__)


def step_age_seconds(facts: IncidentFacts) -> float | None:
    last = facts.context.max_value(LAST_STEP)
    return None if last is None else max(0.0, facts.at.timestamp() - last)


def gpu_of_rank(facts: IncidentFacts, rank: int) -> Place | None:
    """Where a rank runs, by its own word; else by the order of the job's GPUs, and None where not all are seen."""
    told = [labels for labels, _ in facts.context.rows(RANK_PLACES, rank=str(rank)) if labels.get("Hostname")]
    if told:
        return _place(facts, told[-1])
    rows = {labels.get("UUID", ""): labels for labels, _ in facts.context.rows("DCGM_FI_DEV_GPU_UTIL")}
    world = facts.context.max_value(WORLD)
    if world is None or len(rows) != round(world):
        return None
    ordered = sorted(
        rows.values(),
        key=lambda row: jobs.rank_sort_key(row.get("pod", ""), row.get("Hostname", ""), row.get("gpu", "")),
    )
    return _place(facts, ordered[rank]) if rank < len(ordered) else None


def _nothing_wrong(facts: IncidentFacts, held: set[str]) -> str:
    """What was looked at in vain, and what nobody exports."""
    around = facts.context
    told = {"a memory error": around.rows(GREW), "slowed clocks": around.rows(REASONS)}
    is_told = {what: any(labels.get("UUID", "") in held for labels, _ in rows) for what, rows in told.items()}
    looked = ["an Xid", *(what for what, there in is_told.items() if there)]
    gaps = [what for what, there in is_told.items() if not there]
    unknown = f"; no exporter would tell of {' or '.join(gaps)}" if gaps else ""
    had = " or ".join(part for part in (", ".join(looked[:-1]), looked[-1]) if part)
    return f"none of the {len(held)} GPUs had {had} within {around.window_minutes} min{unknown}"


def _memory_errors(facts: IncidentFacts, held: set[str]) -> tuple[Evidence, ...]:
    grew = [
        (_place(facts, labels), labels.get("field", ""), value)
        for labels, value in facts.context.rows(GREW)
        if labels.get("UUID", "") in held and value > 0
    ]
    return tuple(_grown(facts, place, field, count=value) for place, field, value in grew[:4])


def _grown(facts: IncidentFacts, place: Place, field: str, *, count: float) -> Evidence:
    _, what = gpu_errors.MEMORY_ERRORS[field]
    said = f"{facts.names(place)}: {count:.0f} {what} within {facts.context.window_minutes} min"
    return Evidence(field, said, at=facts.at, place=place)


def _held_down(facts: IncidentFacts, held: set[str]) -> tuple[Evidence, ...]:
    slowed = [
        (_place(facts, labels), int(value))
        for labels, value in facts.context.rows(REASONS)
        if labels.get("UUID", "") in held and gpu_errors.is_throttled(value)
    ]
    return tuple(
        Evidence(
            gpu_errors.CLOCK_REASONS,
            f"{facts.names(place)}: clocks held down, reasons 0x{value:x}",
            at=facts.at,
            place=place,
        )
        for place, value in slowed[:4]
    )


def _place(facts: IncidentFacts, labels: Labels) -> Place:
    return Place(facts.place.cluster, node=labels.get("Hostname") or "?", gpu=labels.get("UUID") or None)


def _gpu_evidence(facts: IncidentFacts, gpu: Place | None) -> tuple[Evidence, ...]:
    if gpu is None:
        return ()
    clock = facts.context.max_value("DCGM_FI_DEV_SM_CLOCK", UUID=gpu.gpu or "")
    return (
        () if clock is None else (_seen(facts, "DCGM_FI_DEV_SM_CLOCK", f"{facts.names(gpu)}: SM clock {clock:g} MHz"),)
    )


def _draw(facts: IncidentFacts, spinning: set[str]) -> tuple[Evidence, ...]:
    """What GPUs that only wait draw: far less than their work would."""
    watts = [value for labels, value in facts.context.rows(POWER) if labels.get("UUID", "") in spinning]
    limit = facts.context.max_value(POWER_LIMIT)
    of = f", of {limit:.0f} that they may" if limit else ""
    return (_seen(facts, POWER, f"those that spin draw {min(watts):.0f} to {max(watts):.0f} W{of}"),) if watts else ()


def _seen(facts: IncidentFacts, source: str, text: str) -> Evidence:
    return Evidence(source, text, at=facts.at, place=facts.place)


def _told(facts: IncidentFacts) -> tuple[Evidence, ...]:
    return tuple(member_evidence(member) for member in facts.incident.members[:4])


def _fed(facts: IncidentFacts) -> RuledOut | None:
    share = facts.context.max_value(WAIT)
    if share is None or share >= STARVED_SHARE:
        return None
    return RuledOut(
        "data_loader_starved", f"{share:.0%} of the time passes in waiting for input, below {STARVED_SHARE:.0%}"
    )


def _even(facts: IncidentFacts) -> RuledOut | None:
    seconds = compute_seconds(facts)
    if len(seconds) < 2 or late_ranks(facts):
        return None
    return RuledOut("nccl_timeout_straggler", f"all {len(seconds)} ranks compute about equally long")


def _whole(facts: IncidentFacts) -> RuledOut | None:
    if facts.context.max_value(WORLD) is None or missing_ranks(facts):
        return None
    return RuledOut("nccl_rank_died", f"all {facts.context.max_value(WORLD):g} ranks report")


def _listed(ranks: list[str]) -> str:
    more = f" and {len(ranks) - 4} more" if len(ranks) > 4 else ""
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(ranks[:4])}{more}"
