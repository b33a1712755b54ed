"""Check scraping: targets are up and in time, and GPU exporters have the required series and labels."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator

from watchkeeper.doctor.stack.facts import Prometheus, StackFinding, Target

# Jobs and labels of dcgm-exporter and the agent.
GPU_WORDS = re.compile(r"dcgm|nvidia|\bgpu|watchkeeper-agent", re.IGNORECASE)
GPU_PORT, NODE_PORT = ":9400", ":9100"
GET = re.compile(r'^Get "[^"]*": ')
SHOWN = 5
MAX_ERROR_LENGTH = 200
# A scrape that takes most of its timeout fails under load.
SLOW_SHARE = 0.8
# Pattern of Prometheus' error, the reason, and the fix; the first match counts.
REASONS: tuple[tuple[str, str, str], ...] = (
    (
        r"deadline exceeded|Client.Timeout",
        "timeout",
        "Increase scrape_timeout (at most scrape_interval), and export fewer fields",
    ),
    (
        r"no such host|server misbehaving|lookup ",
        "DNS cannot resolve the name",
        "Check CoreDNS: kubectl -n kube-system get pods -l k8s-app=kube-dns; or correct the name of the target",
    ),
    (
        r"connection refused",
        "connection refused",
        "Start the exporter, or correct the port: dcgm-exporter and the agent use 9400, node_exporter 9100",
    ),
    (
        r"no route to host|i/o timeout|network is unreachable",
        "the node is unreachable",
        "Allow Prometheus in the firewall or NetworkPolicy of that node",
    ),
    (r"status 40[13]", "the exporter requires authentication", "Set `authorization` or `basic_auth` in the scrape job"),
    (r"status 404", "the path does not exist", "Correct metrics_path; exporters use /metrics"),
    (r"x509|certificate|tls:", "the certificate is not trusted", "Set `ca_file` in `tls_config` of the scrape job"),
    (
        r"HTTP response to HTTPS|malformed HTTP|Content-Type|valid start token|metric type|expected .* got|text format",
        "another program answers, not an exporter",
        "Another program uses the port (often 9100 or 9400): ss -ltnp 'sport = :9400' on the node",
    ),
)


def targets_down(server: Prometheus) -> Iterator[StackFinding]:
    by_reason: dict[tuple[str, str, str], list[Target]] = defaultdict(list)
    for target in server.targets:
        if not target.is_up and target.error:
            why, fix = _reason_and_fix(target.error)
            by_reason[target.job, why, fix].append(target)
    for (job, why, fix), targets in by_reason.items():
        total = sum(target.job == job for target in server.targets)
        title = f"{len(targets)} of {total} targets of job {job} are down: {why}"
        # Without the URL that Prometheus' error repeats: Get "http://…": dial tcp …
        evidence = _target_lines(targets, lambda target: GET.sub("", target.error)[:MAX_ERROR_LENGTH])
        yield StackFinding("targets_down", title, evidence, fix)


def slow_scrapes(server: Prometheus) -> Iterator[StackFinding]:
    timed = [target for target in server.targets if target.is_up and target.timeout_seconds is not None]
    slow = [target for target in timed if target.seconds >= SLOW_SHARE * (target.timeout_seconds or 0.0)]
    if slow:
        yield StackFinding(
            "slow_scrapes",
            f"{len(slow)} targets are close to their scrape timeout",
            _target_lines(slow, lambda target: f"{target.seconds:.1f} s of {target.timeout_seconds:g} s"),
            "Increase scrape_timeout (at most scrape_interval), and export fewer fields",
        )


def no_gpu_target(server: Prometheus) -> Iterator[StackFinding]:
    if gpu_targets(server) or _has_gpus(server) or "/api/v1/targets" in server.unread:
        return
    jobs = sorted({target.job for target in server.targets}) or ["none"]
    yield StackFinding(
        "no_gpu_target",
        "Prometheus scrapes no GPU exporter",
        (f"{len(server.targets)} targets of the jobs {', '.join(jobs[:SHOWN])}", "no series DCGM_FI_*"),
        "Scrape dcgm-exporter or the agent on port 9400: `watchkeeper render prometheus DIR` writes the job",
    )


def exporter_without_gpus(server: Prometheus) -> Iterator[StackFinding]:
    running = [target for target in gpu_targets(server) if target.is_up]
    empty = [target for target in running if (target.job, target.instance) not in server.with_gpus]
    if empty:
        yield StackFinding(
            "exporter_without_gpus",
            f"{len(empty)} GPU exporters report no GPU",
            _target_lines(empty, lambda _: "up, no DCGM_FI_DEV_* series"),
            "Read the log of the exporter; usual reasons: no driver on the node, no `runtimeClassName: nvidia`, or "
            "a node without GPUs",
        )


def fields_missing(server: Prometheus) -> Iterator[StackFinding]:
    """Fields about broken hardware that dcgm-exporter does not export by default."""
    if not _has_gpus(server):
        return
    needed = {
        "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": "uncorrectable memory errors are not detected (off by default)",
        "DCGM_FI_DEV_ROW_REMAP_FAILURE": "memory that cannot be repaired is not detected",
        "DCGM_FI_DEV_THERMAL_VIOLATION": "time lost to heat is not measured (off by default)",
        "DCGM_FI_PROF_SM_ACTIVE": "real GPU activity is not measured (needs DCGM's profiling module)",
    }
    missing = tuple(f"{name}: {why}" for name, why in needed.items() if name not in server.names)
    if missing:
        yield StackFinding(
            "fields_missing",
            f"{len(missing)} fields for broken or idle GPUs are not exported",
            missing,
            "Enable them in the exporter's counters file (dcgm-exporter -f FILE), or run `watchkeeper agent`",
        )


def labels_renamed(server: Prometheus) -> Iterator[StackFinding]:
    """The pod label of the exporter's own pod replaced the pod label of the GPU's holder."""
    dcgm_labels = {name: labels for name, labels in server.labels.items() if name.startswith("DCGM_FI_")}
    renamed = sorted(name for name, labels in dcgm_labels.items() if "exported_pod" in labels)
    if renamed:
        yield StackFinding(
            "labels_renamed",
            "The pod that holds a GPU is in the label exported_pod, because `pod` is the exporter's own pod",
            tuple(f"{name} has exported_pod" for name in renamed[:SHOWN]),
            "Set honorLabels: true in the ServiceMonitor (honor_labels in a job); then `pod` is the holder of the GPU",
        )


def gpus_twice(server: Prometheus) -> Iterator[StackFinding]:
    if server.doubled_gpus:
        yield StackFinding(
            "gpus_twice",
            f"{server.doubled_gpus} GPUs are reported by more than one target",
            (f"count by (UUID) (group by (UUID, job, instance) (DCGM_FI_DEV_GPU_TEMP)) > 1 has {server.doubled_gpus}",),
            "Keep one; usual reasons: prometheus.io/scrape as well as a ServiceMonitor, or two exporters on a node",
        )


def _reason_and_fix(error: str) -> tuple[str, str]:
    for pattern, why, fix in REASONS:
        if re.search(pattern, error, re.IGNORECASE):
            return why, fix
    return "see the error", "Read the page yourself: curl -v URL"


def gpu_targets(server: Prometheus) -> list[Target]:
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


def _target_lines(targets: list[Target], text: Callable[[Target], str]) -> tuple[str, ...]:
    """The URL of each target without its query string, which may be long, and the text."""
    lines = [f"{target.url.partition('?')[0]}: {text(target)}" for target in targets]
    return (*lines[:SHOWN], *([f"and {len(lines) - SHOWN} more"] if len(lines) > SHOWN else []))
