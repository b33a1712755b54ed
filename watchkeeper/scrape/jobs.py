"""A scrape job: how its targets are discovered, relabelled and scraped; and the target that results.

`prometheus_config` builds jobs from an existing prometheus.yml; the hub's own lists are a job without rules. Order and
defaults are those of prometheus/prometheus, scrape/target.go, read 2026-11.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from urllib.parse import urlencode

from watchkeeper.errors import CollectError, quote
from watchkeeper.kit import durations
from watchkeeper.model import fleet, labels
from watchkeeper.net.access import NO_ACCESS, Access
from watchkeeper.scrape import relabel

PARAM = "__param_"


class DiscoveryKind(StrEnum):
    STATIC = "static"
    FILE = "file"
    HTTP = "http"
    DNS = "dns"


@dataclass(frozen=True, slots=True)
class TargetListLocation:
    """The location of a list of targets: a file pattern, a URL, a DNS name with a port, or the job itself."""

    kind: DiscoveryKind
    location: str
    groups: tuple[tuple[tuple[str, ...], labels.Labels], ...] = ()
    record: str = "SRV"
    port: int = 0
    access: Access = NO_ACCESS


@dataclass(frozen=True, slots=True)
class LabelLimits:
    """Limits on the labels of a series, including the metric name; 0 is no limit."""

    # Without `cluster`, because Prometheus adds that label only when it sends samples to another system.
    count: int = 0
    name_length: int = 0
    value_length: int = 0

    @property
    def is_set(self) -> bool:
        return bool(self.count or self.name_length or self.value_length)

    def check(self, series: labels.Labels | None) -> None:
        """CollectError if a stored series exceeds a limit: then the whole page is dropped, as in Prometheus."""
        if series is None or not self.is_set:
            return
        longest_name = max((len(name.encode()) for name, _ in series.pairs), default=0)
        longest_value = max((len(value.encode()) for _, value in series.pairs), default=0)
        count = len(series.without("cluster"))
        checks = (
            (count, self.count, "labels besides `cluster`", "label_limit"),
            (longest_name, self.name_length, "bytes in the name of a label", "label_name_length_limit"),
            (longest_value, self.value_length, "bytes in the value of a label", "label_value_length_limit"),
        )
        for actual, limit, noun, key in checks:
            if limit and actual > limit:
                raise CollectError(
                    f"{quote(str(series))} has {actual} {noun}, the {key} of its job is {limit}",
                    now="All samples of this page were dropped",
                    remedy="Raise the limit, or drop labels with metric_relabel_configs",
                )


@dataclass(frozen=True, slots=True)
class ScrapeJob:
    """What the targets of a job share; None means the hub's setting."""

    name: str = "gpu"
    locations: tuple[TargetListLocation, ...] = ()
    interval_seconds: float | None = None
    timeout_seconds: float | None = None
    scheme: str = "http"
    metrics_path: str = "/metrics"
    params: tuple[tuple[str, tuple[str, ...]], ...] = ()
    honor_labels: bool = False
    honor_timestamps: bool = True
    # Whether to request pages as protobuf, the only format with native histograms; and whether to keep the classic
    # buckets of a histogram that also has native ones.
    native_histograms: bool = False
    classic_histograms: bool = False
    # The page formats to request, in order of preference (`page_formats.PROTOCOLS`; empty: our defaults), and how to
    # escape names with characters outside [a-zA-Z0-9_:].
    protocols: tuple[str, ...] = ()
    escaping: str = "allow-utf-8"
    access: Access = NO_ACCESS
    rules: tuple[relabel.RelabelRule, ...] = ()
    metric_rules: tuple[relabel.RelabelRule, ...] = ()
    max_series: int | None = None
    max_body_bytes: int | None = None
    max_targets: int | None = None
    label_limits: LabelLimits = LabelLimits()


@dataclass(frozen=True, slots=True)
class Target:
    """One page to scrape. `labels` are attached to every sample; `discovered` are the labels before relabelling."""

    address: str
    url: str
    labels: labels.Labels
    cluster: str
    node: str | None = None
    discovered: Mapping[str, str] = field(default_factory=dict, hash=False)
    # Not in the hash: the targets of a job share one object, and a job may list thousands of targets.
    job: ScrapeJob = field(default=ScrapeJob(), hash=False)
    interval_seconds: float | None = None
    timeout_seconds: float | None = None

    @property
    def key(self) -> str:
        """Stable key of the target: its labels change with the inventory, its URL and job do not."""
        return f"{self.labels.get('job', '')} {self.url}"

    @property
    def job_name(self) -> str:
        """Prometheus' scrape pool: the job that discovered it, even if rules change the label `job`."""
        return self.job.name


@dataclass(frozen=True, slots=True)
class DroppedTarget:
    """A target that a rule of its job dropped."""

    job_name: str
    discovered: Mapping[str, str] = field(hash=False)


def build_target(
    address: str, group_labels: Mapping[str, str], job: ScrapeJob, *, node: fleet.Node | None, cluster: str
) -> Target | DroppedTarget:
    """The target of one address; CollectError if the relabelled target cannot be scraped."""
    discovered = {name: value for name, value in _defaults(job).items() if value} | dict(group_labels)
    discovered.setdefault("__address__", address)
    kept = relabel.relabel(job.rules, discovered) if job.rules else {k: v for k, v in discovered.items() if v}
    if kept is None:
        return DroppedTarget(job.name, discovered)
    address = kept.get("__address__", "")
    if not address:
        raise CollectError("the target has no address after relabelling", where=f"job {job.name}")
    cluster = node.cluster if node is not None else cluster
    public = {name: value for name, value in kept.items() if not name.startswith("__")}
    instance = node.name if node is not None else address
    interval = _seconds(kept, "__scrape_interval__", job)
    timeout = _seconds(kept, "__scrape_timeout__", job)
    return Target(
        address,
        f"{kept.get('__scheme__', 'http')}://{address}{kept.get('__metrics_path__', '/')}{_query(kept, job)}",
        labels.Labels({"instance": instance, "cluster": cluster} | public),
        public.get("cluster", cluster),
        node=node.name if node is not None else None,
        discovered=discovered,
        job=job,
        interval_seconds=interval,
        timeout_seconds=timeout if interval is None or timeout is None else min(interval, timeout),
    )


def _defaults(job: ScrapeJob) -> dict[str, str]:
    timings = (("__scrape_interval__", job.interval_seconds), ("__scrape_timeout__", job.timeout_seconds))
    return {
        "job": job.name,
        "__scheme__": job.scheme,
        "__metrics_path__": job.metrics_path,
        **{name: durations.format_seconds(seconds) for name, seconds in timings if seconds is not None},
        **{PARAM + name: values[0] for name, values in job.params if values},
    }


def _seconds(kept: Mapping[str, str], name: str, job: ScrapeJob) -> float | None:
    text = kept.get(name)
    if text is None:
        return None
    try:
        seconds = durations.parse_seconds(text)
    except ValueError as error:
        raise CollectError(f"{name}: {error}", where=f"job {job.name}") from error
    if seconds <= 0:
        raise CollectError(f"{name} is {quote(text)}, it must be longer than 0s", where=f"job {job.name}")
    return seconds


def _query(kept: Mapping[str, str], job: ScrapeJob) -> str:
    """URL parameters: a rule may have changed the first value of each."""
    other_values = {name: values[1:] for name, values in job.params}
    first = {name.removeprefix(PARAM): value for name, value in kept.items() if name.startswith(PARAM)}
    pairs = [(name, value) for name in sorted(first) for value in (first[name], *other_values.get(name, ()))]
    return f"?{urlencode(pairs)}" if pairs else ""
