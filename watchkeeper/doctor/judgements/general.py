"""Signs that speak for themselves, numbers of serving programs, and what remains when nothing else does."""

from __future__ import annotations

from collections.abc import Iterable

from watchkeeper.catalogue import tables
from watchkeeper.doctor import excerpts, signatures
from watchkeeper.doctor.facts import DoctorFacts
from watchkeeper.doctor.judgements import services
from watchkeeper.doctor.opinion import MAX_EVIDENCE, Opinion, opinion
from watchkeeper.doctor.signatures import Role
from watchkeeper.model import diagnosis

# Judged together with other signs, in modules of their own.
JUDGED_ELSEWHERE = frozenset(
    {"nccl-bad-interface", "nccl-link-local", "k8s-untolerated-taint", "k8s-selector", "worker-died", *services.RETURNS}
)
SLOW_LOAD_SECONDS = 300.0
MANY_WAITING = 100
FULL_CACHE_PERCENT = 95.0
# Printouts that have a reader of their own: words in them name fields, not failures.
LISTINGS = frozenset({"exporter_metrics", "nvidia_smi_q", "nvidia_smi_xml", "nvidia_smi_csv", "lspci", "ipmi_sel"})
# The call that failed stands at most so far above the error that a traceback ends with.
TRACEBACK_LINES = 60
# A share of unused reservations that a caching allocator does not have in good health.
FRAGMENTED_SHARE = 0.1


def signs(facts: DoctorFacts) -> Iterable[Opinion]:
    """Each sign of the table that names a cause, and the further causes that its line allows."""
    active = _active_signs(facts)
    silenced = {cause for sign in active for cause in sign.silences}
    for sign in active:
        if sign.role is Role.HINT:
            continue
        named = {sign.cause: sign.confidence, **sign.also}
        for cause, confidence in named.items():
            if cause in ("", signatures.BY_XID) or cause in silenced or sign.id in JUDGED_ELSEWHERE:
                continue
            yield opinion(cause, confidence, sign.why, on=facts.of(sign.id)[:MAX_EVIDENCE])


def _active_signs(facts: DoctorFacts) -> list[signatures.Sign]:
    """The signs that count."""
    listed = [signatures.lookup(name) for name in facts.signs()]
    return [sign for sign in listed if not facts.of(*sign.unless)]


def harmless(facts: DoctorFacts) -> Iterable[str]:
    """What looks like trouble and is none, in the words of its sign."""
    return [sign.why for sign in _active_signs(facts) if sign.role is Role.BENIGN and sign.why]


def hints(facts: DoctorFacts) -> Iterable[Opinion]:
    """What remains to be said when no judgement says more: the part that a failing line speaks of."""
    active = _active_signs(facts)
    if any(sign.role is Role.BENIGN for sign in active) or facts.kinds() <= LISTINGS:
        return
    for sign in active:
        if sign.role is Role.HINT:
            for cause, confidence in {sign.cause: sign.confidence, **sign.also}.items():
                yield opinion(cause, confidence, sign.why, on=facts.of(sign.id)[:MAX_EVIDENCE])


def failing_words(facts: DoctorFacts) -> Iterable[Opinion]:
    """The very last: a short text in which nothing is known, and of which a line speaks of a failure."""
    failures = facts.of(excerpts.SIGN)
    if failures and not facts.kinds() <= LISTINGS and not list(harmless(facts)):
        why = "A line speaks of a failure, and no signature knows it."
        yield opinion(diagnosis.UNKNOWN_CAUSE, 0.13, why, on=failures[:MAX_EVIDENCE])


def dcgm_incidents(facts: DoctorFacts) -> Iterable[Opinion]:
    """Incidents of DCGM by name or number, as its JSON and logs have them."""
    for sighting in facts.of("dcgm-incident", "dcgm-incident-number"):
        row = tables.find_dcgm_incident(sighting.fields["name"])
        if row is not None and row.cause:
            confidence = 0.35 if row.cause == diagnosis.UNKNOWN_CAUSE else 0.82
            why = f"DCGM reports {row.name}: {row.meaning}."
            yield opinion(row.cause, confidence, why, on=[sighting], advice=[row.action])


def gpu_memory(facts: DoctorFacts) -> Iterable[Opinion]:
    """What the numbers of an out-of-memory error add: really full, or full of holes."""
    for sighting in facts.of("cuda-oom-numbers"):
        total, reserved = _gibibytes(sighting.fields.get("total", "")), _gibibytes(sighting.fields.get("reserved", ""))
        if total and reserved is not None and reserved > FRAGMENTED_SHARE * total:
            why = f"{sighting.fields['reserved']} are reserved but not in use: memory is fragmented."
            yield opinion(
                "cuda_oom", 0.9, why, on=[sighting], advice=["Set PYTORCH_ALLOC_CONF=expandable_segments:True"]
            )


def host_memory(facts: DoctorFacts) -> Iterable[Opinion]:
    """A launcher that stops its ranks after the host's memory was seen nearly full; either alone says little."""
    full, stopped = facts.of("host-memory-nearly-full"), facts.of("launcher-kills", "process-killed-nine")
    if full and stopped:
        why = f"The host's memory was nearly full ({full[-1].fields['used']} in use) when a rank was gone."
        yield opinion("host_oom", 0.62, why, on=[full[-1], *stopped[:3]])


def checkpoints(facts: DoctorFacts) -> Iterable[Opinion]:
    """A file system that refused a write while a program was saving: the error's own line does not say what for."""
    tried = facts.of("saving-was-tried")
    for refused in facts.of("write-refused"):
        before = [
            sighting
            for sighting in tried
            if sighting.input == refused.input and 0 <= refused.line - sighting.line <= TRACEBACK_LINES
        ]
        if before:
            why = f"A checkpoint was being saved when the file system answered: {refused.fields['error'].strip()}."
            yield opinion("checkpoint_failing", 0.78, why, on=[before[-1], refused])


def _gibibytes(text: str) -> float | None:
    number, _, unit = text.partition(" ")
    return float(number) * {"KiB": 2**-20, "MiB": 2**-10, "GiB": 1.0}[unit] if unit else None


def requests(facts: DoctorFacts) -> Iterable[Opinion]:
    """A pod without a GPU in its limits, and a program that looks for one."""
    pods = facts.of("k8s-pod-without-gpu")
    looked = facts.of("torch-no-driver", "no-cuda-gpus", "container-no-libcuda")
    if pods and looked:
        why = "The pod's containers request no GPU, and the program in it looks for one."
        yield opinion("missing_gpu_request", 0.85, why, on=[*pods[:3], *looked[:3]])


def serving(facts: DoctorFacts) -> Iterable[Opinion]:
    """A server whose requests wait before a full cache, and one that takes minutes to load."""
    waiting = [
        sighting
        for sighting in facts.of("vllm-stats")
        if int(sighting.fields["waiting"]) >= MANY_WAITING
        or (
            float(sighting.fields["cache"]) >= FULL_CACHE_PERCENT
            and int(sighting.fields["waiting"]) > int(sighting.fields["running"]) // 4
        )
    ]
    if waiting:
        sign = signatures.lookup("vllm-waiting")
        yield opinion(sign.cause, sign.confidence, sign.why, on=waiting[:MAX_EVIDENCE])
    slow = [sighting for sighting in facts.of("load-seconds") if float(sighting.fields["seconds"]) >= SLOW_LOAD_SECONDS]
    if slow:
        sign = signatures.lookup("load-slow")
        yield opinion(sign.cause, sign.confidence, sign.why, on=slow[:MAX_EVIDENCE])


def leftovers(facts: DoctorFacts) -> Iterable[Opinion]:
    """Errors that were seen and that no sign explains: an error is never the same as nothing wrong."""
    errors = facts.of("python-traceback", "python-exception", "cuda-error", "nccl-cuda-failure", "watchdog-wraps")
    if errors:
        why = "A program ended with an error that no signature explains."
        yield opinion(diagnosis.UNKNOWN_CAUSE, 0.2, why, on=errors[:MAX_EVIDENCE])
        return
    failed = facts.of("diag-test-failed")
    if failed:
        why = "dcgmi diag failed a test, and no signature knows the reason that stands below it."
        yield opinion(diagnosis.UNKNOWN_CAUSE, 0.2, why, on=failed[:MAX_EVIDENCE])
        return
    pods = facts.of("pod-crashes")
    if pods:
        why = "A pod does not start or stay up: its events and the log of its last attempt say why."
        yield opinion(diagnosis.UNKNOWN_CAUSE, 0.2, why, on=pods[:MAX_EVIDENCE])
        return
    logged = facts.of("logged-error")
    if logged and not facts.kinds() <= LISTINGS:
        why = "A program logged an error that no signature explains."
        yield opinion(diagnosis.UNKNOWN_CAUSE, 0.15, why, on=logged[:MAX_EVIDENCE])
