"""Judge single signs, services, schedulers and serving programs, and errors without a known cause.

Every cluster has nodes with taints that GPU pods do not tolerate, such as control planes. The scheduler's message lists
them together with the real reason.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from watchkeeper.catalogue import tables
from watchkeeper.doctor import documents, signatures
from watchkeeper.doctor.facts import MAX_EVIDENCE, DoctorFacts, Opinion, Sighting, opinion, sign_opinions
from watchkeeper.doctor.signatures import Role
from watchkeeper.model import diagnosis

# The sign of an outage, and the sign of the recovery.
RECOVERY_SIGNS = {"storage-does-not-answer": "storage-answers-again", "virtual-gpu-unlicensed": "virtual-gpu-licensed"}
RECOVERED_CONFIDENCE = 0.45
SERVICE_FIELDS = ("server", "target")
# Signs that other functions judge together with further signs.
JUDGED_ELSEWHERE = frozenset({
    "nccl-bad-interface", "nccl-link-local", "k8s-untolerated-taint", "k8s-selector", "worker-died",
    *RECOVERY_SIGNS,
})  # fmt: skip
SLOW_LOAD_SECONDS = 300.0
MANY_WAITING = 100
FULL_CACHE_PERCENT = 95.0
# Printouts with their own reader: failure words in them are field names.
LISTINGS = frozenset({"exporter_metrics", "nvidia_smi_q", "nvidia_smi_xml", "nvidia_smi_csv", "lspci", "ipmi_sel"})
# The failed call is within this many lines above the error at the end of a traceback.
TRACEBACK_LINES = 60
# A larger share of reserved, unused memory means fragmentation.
FRAGMENTED_SHARE = 0.1
LOGGED_ERROR = ("logged-error",)
DROPPED = re.compile(r"i/o timeout|no route to host|network is unreachable")
POD_DROPPED_CONFIDENCE = 0.62
# Signs of errors without a cause, with the confidence and the reason; the first that is present counts.
UNEXPLAINED = (
    (
        ("python-traceback", "python-exception", "cuda-error", "nccl-cuda-failure", "watchdog-wraps"),
        0.2,
        "A program failed with an error that no sign explains.",
    ),
    (("diag-test-failed",), 0.2, "A test of dcgmi diag failed; no sign matches the reason below it."),
    (("pod-crashes",), 0.2, "A pod does not start or crashes: read its events and the log of its last run."),
    (LOGGED_ERROR, 0.15, "A program logged an error that no sign explains."),
)
# 3 node(s) had untolerated taint {nvidia.com/gpu: present}      2 node(s) had taint {key: value}, that the pod didn't …
TAINT = re.compile(r"(?P<count>\d+) node\(s\) had (?:untolerated )?taints?(?:\(s\))?(?: \{(?P<taint>[^}]*)\})?")
OTHER_REASON = re.compile(
    r"(?i)Insufficient (?:nvidia|amd|gpu)|didn't match Pod's node affinity|didn't match node selector"
)
AT_LIMIT = re.compile(
    r"max node group size reached|in backoff after failed scale-up|max cluster \w+(?: \w+)? limit reached"
)
FULL = re.compile(rf"(?i)Insufficient (?:nvidia|amd|gpu)|{AT_LIMIT.pattern}")
IRRELEVANT_TAINTS = ("node-role.kubernetes.io/", "CriticalAddonsOnly")
NODE_STATE = re.compile(r"node\.kubernetes\.io/(?:not-ready|unreachable|out-of-service)")


def sign_causes(facts: DoctorFacts) -> Iterable[Opinion]:
    active = _active_signs(facts)
    silenced = {cause for sign in active for cause in sign.silences}
    for sign in active:
        if sign.role is not Role.HINT and sign.id not in JUDGED_ELSEWHERE:
            for candidate in sign_opinions(sign, facts.find(sign.id)):
                if candidate.cause not in ("", signatures.BY_XID) and candidate.cause not in silenced:
                    yield candidate


def _active_signs(facts: DoctorFacts) -> list[signatures.Sign]:
    """The signs in the inputs, without those that another sign disables."""
    listed = [signatures.lookup(name) for name in facts.signs()]
    return [sign for sign in listed if not facts.find(*sign.unless)]


def harmless(facts: DoctorFacts) -> Iterable[str]:
    """Explanations of lines that look like a fault and are harmless."""
    return [sign.why for sign in _active_signs(facts) if sign.role is Role.BENIGN and sign.why]


def hints(facts: DoctorFacts) -> Iterable[Opinion]:
    """Opinions from hints, for inputs without a better opinion: the part that a failure line names."""
    active = _active_signs(facts)
    if any(sign.role is Role.BENIGN for sign in active) or facts.kinds() <= LISTINGS:
        return
    for sign in active:
        if sign.role is Role.HINT:
            yield from sign_opinions(sign, facts.find(sign.id))


def unexplained_failures(facts: DoctorFacts) -> Iterable[Opinion]:
    """An unknown cause for a failure line in a short text without any sign."""
    failures = facts.find(documents.FAILURE_SIGN)
    if failures and not facts.kinds() <= LISTINGS and not list(harmless(facts)):
        why = "A line reports a failure that no sign matches."
        yield opinion(diagnosis.UNKNOWN_CAUSE, 0.13, why, on=failures[:MAX_EVIDENCE])


def dcgm_incidents(facts: DoctorFacts) -> Iterable[Opinion]:
    """DCGM incidents by name or number, from its JSON and logs."""
    for sighting in facts.find("dcgm-incident", "dcgm-incident-number"):
        row = tables.find_dcgm_incident(sighting.fields["name"])
        if row is not None and row.cause:
            confidence = 0.35 if row.cause == diagnosis.UNKNOWN_CAUSE else 0.82
            why = f"DCGM reports {row.name}: {row.meaning}."
            yield opinion(row.cause, confidence, why, on=[sighting], advice=[row.action])


def gpu_memory(facts: DoctorFacts) -> Iterable[Opinion]:
    """Fragmentation, from the numbers of a CUDA out-of-memory error."""
    for sighting in facts.find("cuda-oom-numbers"):
        total, reserved = _gibibytes(sighting.fields.get("total", "")), _gibibytes(sighting.fields.get("reserved", ""))
        if total and reserved is not None and reserved > FRAGMENTED_SHARE * total:
            why = f"{sighting.fields['reserved']} are reserved but not in use: memory is fragmented."
            advice = ["Set PYTORCH_ALLOC_CONF=expandable_segments:True"]
            yield opinion("cuda_oom", 0.9, why, on=[sighting], advice=advice)


def host_memory(facts: DoctorFacts) -> Iterable[Opinion]:
    """Node memory was nearly full before a launcher stopped its ranks; either alone is weak evidence."""
    full, stopped = facts.find("host-memory-nearly-full"), facts.find("launcher-kills", "process-killed-nine")
    if full and stopped:
        why = f"The memory of the node was nearly full ({full[-1].fields['used']} used) when a rank ended."
        yield opinion("host_oom", 0.62, why, on=[full[-1], *stopped[:3]])


def checkpoints(facts: DoctorFacts) -> Iterable[Opinion]:
    """A write error while a checkpoint was saved; the line of the error does not name the checkpoint."""
    saves = facts.find("saving-was-tried")
    for refused in facts.find("write-refused"):
        lines_above = range(refused.line - TRACEBACK_LINES, refused.line + 1)
        nearby_saves = [save for save in saves if save.input == refused.input and save.line in lines_above]
        if nearby_saves:
            why = f"The file system returned an error while a checkpoint was saved: {refused.fields['error'].strip()}."
            yield opinion("checkpoint_failing", 0.78, why, on=[nearby_saves[-1], refused])


def _gibibytes(text: str) -> float | None:
    number, _, unit = text.partition(" ")
    return float(number) * {"KiB": 2**-20, "MiB": 2**-10, "GiB": 1.0}[unit] if unit else None


def requests(facts: DoctorFacts) -> Iterable[Opinion]:
    """A pod without a GPU request, and a program in it that needs a GPU."""
    pods = facts.find("k8s-pod-without-gpu")
    searches = facts.find("torch-no-driver", "no-cuda-gpus", "container-no-libcuda")
    if pods and searches:
        why = "The containers of the pod request no GPU, but the program in it needs one."
        yield opinion("missing_gpu_request", 0.85, why, on=[*pods[:3], *searches[:3]])


def serving(facts: DoctorFacts) -> Iterable[Opinion]:
    """Model servers with many waiting requests or a full cache, and those that take minutes to load."""
    waiting = [sighting for sighting in facts.find("vllm-stats") if _is_overloaded(sighting.fields)]
    slow = [load for load in facts.find("load-seconds") if float(load.fields["seconds"]) >= SLOW_LOAD_SECONDS]
    for name, sightings in (("vllm-waiting", waiting), ("load-slow", slow)):
        if sightings:
            sign = signatures.lookup(name)
            yield opinion(sign.cause, sign.confidence, sign.why, on=sightings[:MAX_EVIDENCE])


def _is_overloaded(stats: Mapping[str, str]) -> bool:
    waiting = int(stats["waiting"])
    has_queue = waiting > int(stats["running"]) // 4
    return waiting >= MANY_WAITING or (has_queue and float(stats["cache"]) >= FULL_CACHE_PERCENT)


def unavailable_services(facts: DoctorFacts) -> Iterable[Opinion]:
    """Services that do not answer, or recovered after an outage that may have done harm."""
    for name, recovery_sign in RECOVERY_SIGNS.items():
        outages = facts.find(name)
        if not outages:
            continue
        sign, recoveries = signatures.lookup(name), facts.find(recovery_sign)
        ongoing = [sighting for sighting in outages if not any(_ends_outage(sighting, other) for other in recoveries)]
        if ongoing:
            yield from sign_opinions(sign, ongoing)
        else:
            why = f"{sign.why} It recovered afterwards."
            yield opinion(sign.cause, RECOVERED_CONFIDENCE, why, on=[*outages[: MAX_EVIDENCE - 1], recoveries[-1]])


def _ends_outage(outage: Sighting, recovery: Sighting) -> bool:
    """Whether the recovery is of the same service and after the outage; a line without a name matches all services."""
    is_later = recovery.input == outage.input and recovery.order > outage.order
    shared = [name for name in SERVICE_FIELDS if name in outage.fields and name in recovery.fields]
    return is_later and all(outage.fields[name] == recovery.fields[name] for name in shared)


def unreachable_from_pods(facts: DoctorFacts) -> Iterable[Opinion]:
    """A pod whose packets to the API server are dropped; if the server did not run, they would be refused."""
    sightings = [
        sighting
        for sighting in facts.find("api-server-not-reached")
        if "pod" in sighting.fields and DROPPED.search(sighting.text)
    ]
    if sightings:
        sign = signatures.lookup("pod-cannot-reach-api")
        yield opinion(sign.cause, POD_DROPPED_CONFIDENCE, sign.why, on=sightings[:MAX_EVIDENCE])


def unexplained_errors(facts: DoctorFacts) -> Iterable[Opinion]:
    """An unknown cause for errors that no sign explains, so that an error is never reported as healthy."""
    active = [sign for sign in _active_signs(facts) if sign.role in (Role.CAUSE, Role.EFFECT) and sign.cause]
    explained = {(sighting.input, sighting.line) for sign in active for sighting in facts.find(sign.id)}
    for signs, confidence, why in UNEXPLAINED:
        errors = [error for error in facts.find(*signs) if (error.input, error.line) not in explained]
        is_field_name = signs == LOGGED_ERROR and facts.kinds() <= LISTINGS
        if errors and not is_field_name:
            yield opinion(diagnosis.UNKNOWN_CAUSE, confidence, why, on=errors[:MAX_EVIDENCE])
            return


def taints(facts: DoctorFacts) -> Iterable[Opinion]:
    """Relevant taints: not those of the control plane, and not those for a node that is down."""
    down: list[Sighting] = []
    relevant: list[Sighting] = []
    for sighting in facts.find("k8s-untolerated-taint"):
        keys = [match["taint"] or "" for match in TAINT.finditer(sighting.text)]
        if any(NODE_STATE.search(key) for key in keys):
            down.append(sighting)
        if any(not NODE_STATE.search(key) and not key.startswith(IRRELEVANT_TAINTS) for key in keys):
            relevant.append(sighting)
    sign = signatures.lookup("k8s-untolerated-taint")
    if relevant:
        is_unnamed = all("{" not in sighting.text for sighting in relevant)
        has_other_reason = any(OTHER_REASON.search(sighting.text) for sighting in relevant)
        confidence = sign.confidence if not has_other_reason else 0.6 if is_unnamed else 0.82
        yield opinion(sign.cause, confidence, sign.why, on=relevant[:MAX_EVIDENCE])
    elif facts.has("k8s-untolerated-taint") and not down:
        why = "Only nodes of the control plane, or for other uses, were rejected for a taint."
        yield opinion(sign.cause, 0.35, why, on=facts.find("k8s-untolerated-taint")[:MAX_EVIDENCE])
    if down:
        why = "Nodes have the taint not-ready or unreachable: they are down, and a toleration does not help."
        yield opinion("node_down", 0.72, why, on=down[:MAX_EVIDENCE])


def selectors(facts: DoctorFacts) -> Iterable[Opinion]:
    """Selectors that no node matches; nodes or groups that the message lists as full do match."""
    sightings = facts.find("k8s-selector")
    sign = signatures.lookup("k8s-selector")
    full = [sighting for sighting in sightings if FULL.search(sighting.text)]
    if len(full) < len(sightings):
        yield opinion(sign.cause, sign.confidence, sign.why, on=sightings[:MAX_EVIDENCE])
    elif full:
        why = "Some nodes do not match the node selector of the pod; others were rejected for another reason."
        yield opinion(sign.cause, 0.6, why, on=full[:MAX_EVIDENCE])
        at_limit = [sighting for sighting in full if AT_LIMIT.search(sighting.text)]
        if at_limit:
            why = "The node groups that the pod could use are at their maximum size."
            yield opinion("insufficient_gpu_capacity", 0.75, why, on=at_limit[:MAX_EVIDENCE])
