"""A job: how a group of targets is found, changed by rules, and read; and the target that comes of it.

`prometheus_config` makes jobs from an existing prometheus.yml; the hub's own `sd_files` and `sd_urls` are a
job without rules. `discovery` asks each job's sources and calls `target_of` for every address. Order and
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
    """Where a list of targets is: a file pattern, an address, a DNS name with a port, or here."""

    kind: DiscoveryKind
    location: str
    groups: tuple[tuple[tuple[str, ...], labels.Labels], ...] = ()
    record: str = "SRV"
    port: int = 0
    access: Access = NO_ACCESS


@dataclass(frozen=True, slots=True)
class LabelLimits:
    """What the labels of a series may be at most, the name of its metric among them; 0 is no limit.

    The label `cluster`, which Prometheus gives to nobody before it sends samples elsewhere, does not count.
    """

    count: int = 0
    name_length: int = 0
    value_length: int = 0

    @property
    def is_set(self) -> bool:
        return bool(self.count or self.name_length or self.value_length)

    def check(self, series: labels.Labels | None) -> None:
        """CollectError if a series that is kept has more: as in Prometheus, nothing of its page is kept then."""
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
        for found, limit, what, key in checks:
            if limit and found > limit:
                raise CollectError(
                    f"{quote(str(series))} has {found} {what}, the {key} of its job is {limit}",
                    now="Nothing of this page is kept",
                    remedy="Raise the limit, or drop labels with metric_relabel_configs",
                )


@dataclass(frozen=True, slots=True)
class ScrapeJob:
    """What the targets of a job share; None is the hub's own setting."""

    name: str = "gpu"
    places: tuple[TargetListLocation, ...] = ()
    interval_seconds: float | None = None
    timeout_seconds: float | None = None
    scheme: str = "http"
    metrics_path: str = "/metrics"
    params: tuple[tuple[str, tuple[str, ...]], ...] = ()
    honor_labels: bool = False
    honor_timestamps: bool = True
    # Whether pages are asked for as protobuf, which alone has native histograms; and whether the classic buckets of a
    # histogram that has native ones are kept as well.
    native_histograms: bool = False
    classic_histograms: bool = False
    # Which forms of a page are asked for, the best first (`page_forms.PROTOCOLS`; none are our own), and how names of
    # other characters than [a-zA-Z0-9_:] are to be written.
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
    """One page to scrape. `labels` are attached to every sample; `discovered` is what the source said."""

    address: str
    url: str
    labels: labels.Labels
    cluster: str
    node: str | None = None
    discovered: Mapping[str, str] = field(default_factory=dict, hash=False)
    # Not part of the hash: the targets of a job share one object, and a job may list thousands.
    job: ScrapeJob = field(default=ScrapeJob(), hash=False)
    interval_seconds: float | None = None
    timeout_seconds: float | None = None

    @property
    def key(self) -> str:
        """Stable name of the target: its labels move with the inventory, its URL and job do not."""
        return f"{self.labels.get('job', '')} {self.url}"

    @property
    def job_name(self) -> str:
        """Prometheus' scrape pool: the job that found it, whatever its rules made of the label `job`."""
        return self.job.name


@dataclass(frozen=True, slots=True)
class DroppedTarget:
    """A target that a rule of its job left out."""

    job_name: str
    discovered: Mapping[str, str] = field(hash=False)


def build_target(
    address: str, named: Mapping[str, str], job: ScrapeJob, *, node: fleet.Node | None, cluster: str
) -> Target | DroppedTarget:
    """The target of one address of a list; CollectError if the rules leave something that cannot be scraped."""
    found = {name: value for name, value in _defaults(job).items() if value} | dict(named)
    found.setdefault("__address__", address)
    kept = relabel.relabel(job.rules, found) if job.rules else {name: text for name, text in found.items() if text}
    if kept is None:
        return DroppedTarget(job.name, found)
    address = kept.get("__address__", "")
    if not address:
        raise CollectError("no address is left after relabelling", where=f"job {job.name}")
    cluster = node.cluster if node is not None else cluster
    own = {name: value for name, value in kept.items() if not name.startswith("__")}
    instance = node.name if node is not None else address
    interval = _pace(kept, "__scrape_interval__", job)
    timeout = _pace(kept, "__scrape_timeout__", job)
    return Target(
        address,
        f"{kept.get('__scheme__', 'http')}://{address}{kept.get('__metrics_path__', '/')}{_query(kept, job)}",
        labels.Labels({"instance": instance, "cluster": cluster} | own),
        own.get("cluster", cluster),
        node=node.name if node is not None else None,
        discovered=found,
        job=job,
        interval_seconds=interval,
        timeout_seconds=timeout if interval is None or timeout is None else min(interval, timeout),
    )


def _defaults(job: ScrapeJob) -> dict[str, str]:
    pace = (("__scrape_interval__", job.interval_seconds), ("__scrape_timeout__", job.timeout_seconds))
    return {
        "job": job.name,
        "__scheme__": job.scheme,
        "__metrics_path__": job.metrics_path,
        **{name: durations.format_seconds(seconds) for name, seconds in pace if seconds is not None},
        **{PARAM + name: values[0] for name, values in job.params if values},
    }


def _pace(kept: Mapping[str, str], name: str, job: ScrapeJob) -> float | None:
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
    """Parameters of the address: a rule may have changed the first value of each."""
    more = {name: values[1:] for name, values in job.params}
    first = {name.removeprefix(PARAM): value for name, value in kept.items() if name.startswith(PARAM)}
    pairs = [(name, value) for name in sorted(first) for value in (first[name], *more.get(name, ()))]
    return f"?{urlencode(pairs)}" if pairs else ""
