"""Is what should be scraped scraped, in time, and does it say what is needed?"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator

from watchkeeper.doctor.stack.facts import Prometheus, Stack, StackFinding, Target

# dcgm-exporter and our agent, by job, label or port; whatever its own set-up calls them.
GPU_WORDS = re.compile(r"dcgm|nvidia|\bgpu|watchkeeper-agent", re.IGNORECASE)
GPU_PORT, NODE_PORT = ":9400", ":9100"
GET = re.compile(r'^Get "[^"]*": ')
SHOWN = 5
LONGEST_ERROR = 200
# A scrape that takes most of its time today is cut off on a busy day.
SLOW_PART = 0.8
# Why a scrape failed, by the words of Prometheus, and what to do; the first that fits.
REASONS: tuple[tuple[str, str, str], ...] = (
    (
        r"deadline exceeded|Client.Timeout",
        "the answer takes too long",
        "Raise scrape_timeout (at most scrape_interval), and ask the exporter for fewer fields",
    ),
    (
        r"no such host|server misbehaving|lookup ",
        "the name cannot be resolved",
        "Look at CoreDNS: kubectl -n kube-system get pods -l k8s-app=kube-dns; or correct the name of the target",
    ),
    (
        r"connection refused",
        "nothing listens at that port",
        "Start the exporter, or correct the port: dcgm-exporter and our agent use 9400, node_exporter 9100",
    ),
    (
        r"no route to host|i/o timeout|network is unreachable",
        "the address cannot be reached",
        "Allow Prometheus through the firewall or NetworkPolicy of that node",
    ),
    (
        r"status 40[13]",
        "the exporter wants to know who asks",
        "Give the job `authorization` or `basic_auth` with what the exporter expects",
    ),
    (r"status 404", "there is no such page", "Correct metrics_path; exporters use /metrics"),
    (r"x509|certificate|tls:", "the certificate is not trusted", "Give the job `tls_config` with the right `ca_file`"),
    (
        r"HTTP response to HTTPS|malformed HTTP|Content-Type|valid start token|metric type|expected .* got|text format",
        "something that is no exporter answers",
        "Another program has taken the port (9100 and 9400 are popular): ss -ltnp 'sport = :9400' on the node",
    ),
)


def targets_down(stack: Stack) -> Iterator[StackFinding]:
    """Targets that do not answer, by job and reason."""
    by_reason: dict[tuple[str, str, str], list[Target]] = defaultdict(list)
    for target in _targets(stack):
        if not target.is_up and target.error:
            why, fix = _reason(target.error)
            by_reason[target.job, why, fix].append(target)
    for (job, why, fix), targets in by_reason.items():
        every = sum(target.job == job for target in _targets(stack))
        title = f"{len(targets)} of {every} targets of job {job} are down: {why}"
        yield StackFinding(
            "targets_down", title, _shown(targets, lambda target: f"{_page(target)}: {_error(target)}"), fix
        )


def slow_scrapes(stack: Stack) -> Iterator[StackFinding]:
    """Targets that use up nearly all the time they have."""
    slow = [
        target
        for target in _targets(stack)
        if target.is_up and target.timeout_seconds is not None and target.seconds >= SLOW_PART * target.timeout_seconds
    ]
    if slow:
        yield StackFinding(
            "slow_scrapes",
            f"{len(slow)} targets answer so late that the next bad day cuts them off",
            _shown(slow, lambda target: f"{_page(target)}: {target.seconds:.1f} s of {target.timeout_seconds:g} s"),
            "Raise scrape_timeout (at most scrape_interval), and ask the exporter for fewer fields",
        )


def no_gpu_target(stack: Stack) -> Iterator[StackFinding]:
    """Nobody scrapes a GPU exporter at all."""
    server = stack.prometheus
    if server is None or _gpu_targets(server) or _has_gpus(server) or "/api/v1/targets" in server.unread:
        return
    jobs = sorted({target.job for target in server.targets}) or ["none"]
    yield StackFinding(
        "no_gpu_target",
        "Prometheus scrapes no GPU exporter",
        (f"{len(server.targets)} targets of the jobs {', '.join(jobs[:SHOWN])}", "no series DCGM_FI_*"),
        "Scrape dcgm-exporter or our agent on port 9400: `watchkeeper render prometheus DIR` writes the job",
    )


def exporter_without_gpus(stack: Stack) -> Iterator[StackFinding]:
    """An exporter that answers and has no GPU to speak of."""
    server = stack.prometheus
    if server is None:
        return
    empty = [
        target
        for target in _gpu_targets(server)
        if target.is_up and (target.job, target.instance) not in server.with_gpus
    ]
    if empty:
        yield StackFinding(
            "exporter_without_gpus",
            f"{len(empty)} GPU exporters answer without a single GPU",
            _shown(empty, lambda target: f"{_page(target)}: up, no DCGM_FI_DEV_* series"),
            "Look at the exporter's log; usual reasons: no driver on the node, no `runtimeClassName: nvidia`, or "
            "the exporter runs on a node without GPUs",
        )


def fields_missing(stack: Stack) -> Iterator[StackFinding]:
    """Fields that tell of broken hardware and that dcgm-exporter leaves out unless told otherwise."""
    server = stack.prometheus
    if server is None or not _has_gpus(server):
        return
    needed = {
        "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": "uncorrectable memory errors are not seen (off in dcgm-exporter's lists)",
        "DCGM_FI_DEV_ROW_REMAP_FAILURE": "memory that cannot be repaired is not seen",
        "DCGM_FI_DEV_THERMAL_VIOLATION": "time lost to heat is not seen (off in dcgm-exporter's lists)",
        "DCGM_FI_PROF_SM_ACTIVE": "how much of a GPU works is not seen (needs DCGM's profiling module)",
    }
    lost = tuple(f"{name}: {why}" for name, why in needed.items() if name not in server.names)
    if lost:
        yield StackFinding(
            "fields_missing",
            f"{len(lost)} fields that tell of broken or wasted GPUs are not exported",
            lost,
            "Turn them on in the exporter's counters file (dcgm-exporter -f FILE), or run `watchkeeper agent`",
        )


def labels_renamed(stack: Stack) -> Iterator[StackFinding]:
    """The exporter's own pod labels lost against those of its own pod."""
    server = stack.prometheus
    if server is None:
        return
    renamed = sorted(
        name for name, labels in server.labels.items() if name.startswith("DCGM_FI_") and "exported_pod" in labels
    )
    if renamed:
        yield StackFinding(
            "labels_renamed",
            "The pods that hold GPUs are called exported_pod, because the exporter's own pod took the label",
            tuple(f"{name} has exported_pod" for name in renamed[:SHOWN]),
            "Set honorLabels: true in the ServiceMonitor (honor_labels in a job); then `pod` is who holds the GPU",
        )


def gpus_twice(stack: Stack) -> Iterator[StackFinding]:
    """One GPU read by two jobs counts twice in every sum."""
    server = stack.prometheus
    if server is not None and server.doubled_gpus:
        yield StackFinding(
            "gpus_twice",
            f"{server.doubled_gpus} GPUs are read by more than one target",
            (f"count by (UUID) (group by (UUID, job, instance) (DCGM_FI_DEV_GPU_TEMP)) > 1 has {server.doubled_gpus}",),
            "Leave one; prometheus.io/scrape beside a ServiceMonitor does this, and two exporters on a node",
        )


def _reason(error: str) -> tuple[str, str]:
    for pattern, why, fix in REASONS:
        if re.search(pattern, error, re.IGNORECASE):
            return why, fix
    return "see the error", "Ask for the page by hand: curl -v URL"


def _page(target: Target) -> str:
    """The address without what is asked of it, which may be long."""
    return target.url.partition("?")[0]


def _error(target: Target) -> str:
    """Prometheus' error without the address that it repeats: Get "http://…": dial tcp …"""
    return GET.sub("", target.error)[:LONGEST_ERROR]


def _targets(stack: Stack) -> tuple[Target, ...]:
    return stack.prometheus.targets if stack.prometheus is not None else ()


def _gpu_targets(server: Prometheus) -> list[Target]:
    return [
        target
        for target in server.targets
        if target.url.partition("/metrics")[0].endswith(GPU_PORT) or _is_gpu_job(target)
    ]


def _is_gpu_job(target: Target) -> bool:
    names = (target.job, *(value for name, value in target.discovered.items() if name.endswith(("_app", "_name"))))
    return NODE_PORT not in target.url and any(GPU_WORDS.search(text) for text in names)


def _has_gpus(server: Prometheus) -> bool:
    return any(name.startswith("DCGM_FI_") for name in server.names)


def _shown(targets: list[Target], word: Callable[[Target], str]) -> tuple[str, ...]:
    more = len(targets) - SHOWN
    return (*(word(target) for target in targets[:SHOWN]), *((f"and {more} more",) if more > 0 else ()))
