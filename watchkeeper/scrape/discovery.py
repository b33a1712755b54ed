"""Service discovery: lists of targets in Prometheus' formats become targets and expected nodes.

A list is a file (`file_sd`, JSON or YAML), a URL (`http_sd`), a DNS name, or static in a job; labels named
`__meta_watchkeeper_*` add the node of a target, its expected number of GPUs and its failure domains. The hub calls
`refresh` repeatedly; a source that fails keeps its last good list.
"""

from __future__ import annotations

import asyncio
import glob
import json
import socket
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import yaml

from watchkeeper.errors import CollectError, quote
from watchkeeper.kit import yaml_text
from watchkeeper.model import fleet
from watchkeeper.net import dns, http
from watchkeeper.net.addresses import join_port
from watchkeeper.scrape import prometheus_config
from watchkeeper.scrape.jobs import DiscoveryKind, DroppedTarget, ScrapeJob, Target, TargetListLocation, build_target

META = "__meta_watchkeeper_"
DOMAIN_META = META + "domain_"
# For lists without that label.
DEFAULT_CLUSTER = "main"
# 100,000 GPUs are 12,500 nodes: this is enough for several targets on each.
MAX_TARGETS = 100_000
WILDCARDS = frozenset("*?[")
FAMILIES = {"A": socket.AF_INET, "AAAA": socket.AF_INET6}


@dataclass(frozen=True, slots=True)
class DiscoveredTargets:
    targets: tuple[Target, ...] = ()
    nodes: tuple[fleet.Node, ...] = ()
    dropped: tuple[DroppedTarget, ...] = ()
    problems: tuple[str, ...] = ()


@dataclass(slots=True)
class TargetSource:
    """A list of targets at one location, with its last good result."""

    job: ScrapeJob
    location: TargetListLocation
    discovered: DiscoveredTargets = field(default_factory=DiscoveredTargets)
    succeeded_at: datetime | None = None
    problem: str | None = None


class Discovery:
    """All sources of a fleet, refreshed together: the hub's own lists, and the jobs of a prometheus.yml."""

    def __init__(
        self,
        locations: Iterable[str],
        *,
        cluster: str = DEFAULT_CLUSTER,
        config: Path | None = None,
        resolver: dns.Resolver | None = None,
    ) -> None:
        # None: the system's resolver, read from its file at each use.
        self._resolver = resolver
        self._cluster = cluster
        self._hub_sources = [TargetSource(ScrapeJob(), _location(location)) for location in locations]
        self._config = None if config is None else prometheus_config.ConfigReader(config)
        self._job_sources: dict[tuple[str, TargetListLocation], TargetSource] = {}
        self._limit_problems: list[str] = []

    @property
    def sources(self) -> list[TargetSource]:
        return [*self._hub_sources, *self._job_sources.values()]

    async def refresh(self, now: datetime) -> DiscoveredTargets:
        """The targets of all sources, each from its last good list; `problems` names the sources that failed."""
        if self._config is not None and self._config.reload():
            self._set_jobs(self._config.config.jobs)
        await asyncio.gather(*(self._refresh_one(source, now) for source in self.sources))
        return self._drop_over_limit(merge_discovered(source.discovered for source in self.sources))

    def _drop_over_limit(self, discovered: DiscoveredTargets) -> DiscoveredTargets:
        """Drop the targets of a job that exceeds its `target_limit`: none is scraped, as in Prometheus."""
        counts = Counter(target.job_name for target in discovered.targets)
        limits = {target.job_name: target.job.max_targets for target in discovered.targets}
        over_limit = {name for name, limit in limits.items() if limit is not None and counts[name] > limit}
        self._limit_problems = [
            f"job {name}: {counts[name]} targets, its target_limit is {limits[name]}; none is scraped"
            for name in sorted(over_limit)
        ]
        kept = tuple(target for target in discovered.targets if target.job_name not in over_limit)
        return replace(discovered, targets=kept) if over_limit else discovered

    def problems(self) -> list[str]:
        problems = [] if self._config is None else list(self._config.problems)
        problems += self._limit_problems
        for source in self.sources:
            problems += [source.problem] if source.problem is not None else []
            problems += source.discovered.problems
        return problems

    def _set_jobs(self, jobs: Sequence[ScrapeJob]) -> None:
        before, self._job_sources = self._job_sources, {}
        for job in jobs:
            for location in job.locations:
                source = before.get((job.name, location)) or TargetSource(job, location)
                source.job = job
                self._job_sources[job.name, location] = source

    async def _refresh_one(self, source: TargetSource, now: datetime) -> None:
        try:
            cluster = self._cluster
            if self._config is not None and self._config.config.cluster and source not in self._hub_sources:
                cluster = self._config.config.cluster
            documents, job = await _fetch(source.location, self._resolver), source.job

            def read() -> DiscoveredTargets:
                return merge_discovered(
                    read_groups(document, where, cluster=cluster, job=job) for where, document in documents
                )

            # Parsing the list of a large fleet takes a tenth of a second.
            source.discovered = await asyncio.to_thread(read)
            source.succeeded_at, source.problem = now, None
        except CollectError as error:
            error.now = "No target of this source was discovered yet"
            if source.succeeded_at is not None:
                count, at = len(source.discovered.targets), source.succeeded_at
                error.now = f"The {count} targets read at {at:%H:%M} UTC stay in force"
            source.problem = str(error)


def read_groups(
    document: bytes | list[Any], where: str, *, cluster: str = DEFAULT_CLUSTER, job: ScrapeJob | None = None
) -> DiscoveredTargets:
    """Targets and nodes of one list; one invalid group makes the whole list invalid, as in Prometheus."""
    groups = _parse(document, where) if isinstance(document, bytes) else document
    if not isinstance(groups, list):
        raise CollectError(f"expected a list of target groups, found {quote(groups)}", where=where)
    job = job or ScrapeJob()
    built_targets: list[Target | DroppedTarget] = []
    nodes: list[fleet.Node] = []
    problems: list[str] = []
    checked_groups = [_check_group(group, f"{where}: group {number}") for number, group in enumerate(groups, 1)]
    listed = sum(len(addresses) for addresses, _ in checked_groups)
    if listed > MAX_TARGETS:
        raise CollectError(f"lists {listed} targets, the limit is {MAX_TARGETS}", where=where)
    for number, (addresses, group_labels) in enumerate(checked_groups, 1):
        group_cluster = group_labels.get(META + "cluster") or cluster
        node = _node(group_labels, f"{where}: group {number}", cluster=group_cluster)
        if node is not None:
            nodes.append(node)
        for address in addresses:
            try:
                built_targets.append(build_target(address, group_labels, job, node=node, cluster=group_cluster))
            except CollectError as error:
                problems.append(f"{where}: group {number}: target {quote(address)} was dropped: {error}")
    targets = tuple(built for built in built_targets if isinstance(built, Target))
    dropped = tuple(built for built in built_targets if isinstance(built, DroppedTarget))
    return merge_discovered([DiscoveredTargets(targets, tuple(nodes), dropped, tuple(problems[:10]))])


def merge_discovered(parts: Iterable[DiscoveredTargets]) -> DiscoveredTargets:
    """One list without duplicates; for two entries of a node, the first value of each field wins."""
    targets: dict[str, Target] = {}
    nodes: dict[tuple[str, str], fleet.Node] = {}
    dropped: list[DroppedTarget] = []
    problems: list[str] = []
    for part in parts:
        dropped += part.dropped
        problems += part.problems
        for target in part.targets:
            targets.setdefault(target.key, target)
        for node in part.nodes:
            previous = nodes.get((node.cluster, node.name))
            nodes[node.cluster, node.name] = node if previous is None else _merge_node(previous, node)
    return DiscoveredTargets(tuple(targets.values()), tuple(nodes.values()), tuple(dropped), tuple(problems))


def _merge_node(first: fleet.Node, second: fleet.Node) -> fleet.Node:
    return fleet.Node(
        first.cluster,
        first.name,
        pool=first.pool or second.pool,
        aliases=first.aliases | second.aliases,
        expected_gpus=second.expected_gpus if first.expected_gpus is None else first.expected_gpus,
        domains={**second.domains, **first.domains},
        source=first.source,
    )


def _location(location: str) -> TargetListLocation:
    return TargetListLocation(
        DiscoveryKind.HTTP if location.startswith(("http://", "https://")) else DiscoveryKind.FILE, location
    )


async def _fetch(location: TargetListLocation, resolver: dns.Resolver | None) -> list[tuple[str, bytes | list[Any]]]:
    """The documents at a location, each with its name."""
    if location.kind is DiscoveryKind.STATIC:
        groups = [
            {"targets": list(addresses), "labels": dict(group_labels)} for addresses, group_labels in location.groups
        ]
        return [(location.location, groups)]
    if location.kind is DiscoveryKind.DNS:
        return [(f"dns {location.location}", await _resolve(location, resolver))]
    if location.kind is DiscoveryKind.HTTP:
        return [(location.location, await _download(location))]
    has_wildcard = WILDCARDS.intersection(location.location)
    paths = sorted(await asyncio.to_thread(glob.glob, location.location)) if has_wildcard else [location.location]
    return [(path, await asyncio.to_thread(_read, path)) for path in paths]


async def _download(location: TargetListLocation) -> bytes | list[Any]:
    connection = http.Connection(access=location.access)
    headers = {"Accept": "application/json", **await location.access.request_headers()}
    try:
        response = await connection.send(http.HttpRequest(location.location, headers=headers))
    finally:
        await connection.aclose()
    if response.status != 200:
        raise CollectError(f"answered {response.status}", where=location.location)
    return await asyncio.to_thread(_with_meta, response.body, location.location, __meta_url=location.location)


async def _resolve(location: TargetListLocation, resolver: dns.Resolver | None) -> list[Any]:
    """SRV records one by one; A and AAAA records together, as the system's resolver returns them."""
    if location.record == "SRV":
        active_resolver = await asyncio.to_thread(dns.system_resolver) if resolver is None else resolver
        services = await active_resolver.srv_records(location.location)
        return [_service_group(location.location, service) for service in services]
    loop = asyncio.get_running_loop()
    family = FAMILIES[location.record]
    try:
        answers = await loop.getaddrinfo(location.location, location.port, family=family, type=socket.SOCK_STREAM)
    except OSError as error:
        raise CollectError(f"DNS lookup failed: {error}", where=f"dns {location.location}") from error
    hosts = sorted({str(answer[4][0]) for answer in answers})
    targets = [join_port(host, location.port) for host in hosts]
    return [{"targets": targets, "labels": {"__meta_dns_name": location.location}}]


def _service_group(name: str, service: dns.SrvRecord) -> dict[str, Any]:
    """One SRV record with Prometheus' labels; `__meta_dns_srv_record_target` ends with a dot there."""
    meta = {
        "__meta_dns_name": name,
        "__meta_dns_srv_record_target": f"{service.host}.",
        "__meta_dns_srv_record_port": str(service.port),
    }
    return {"targets": [f"{service.host}:{service.port}"], "labels": meta}


def _read(path: str) -> bytes | list[Any]:
    try:
        return _with_meta(Path(path).read_bytes(), path, __meta_filepath=path)
    except OSError as error:
        raise CollectError(f"cannot be read: {error.strerror}", where=path) from error


def _parse(document: bytes, where: str) -> Any:
    """YAML if the file name says so, else JSON."""
    if where.endswith((".yml", ".yaml")):
        try:
            return yaml_text.load(document)
        except yaml.YAMLError as error:
            raise CollectError(f"not YAML: {error}", where=where) from error
    try:
        return json.loads(document)
    except (ValueError, RecursionError) as error:
        raise CollectError(f"not JSON: {error}", where=where) from error


def _with_meta(document: bytes, where: str, **meta: str) -> bytes | list[Any]:
    """The groups of a list, each with the location it came from, as Prometheus' rules expect."""
    groups = _parse(document, where)
    if not isinstance(groups, list):
        return document
    for group in groups:
        labels = (group.get("labels") or {}) if isinstance(group, dict) else None
        if isinstance(labels, dict):
            group["labels"] = {**meta, **labels}
    return groups


def _check_group(group: Any, where: str) -> tuple[list[str], dict[str, str]]:
    if not isinstance(group, dict) or not isinstance(group.get("targets"), list):
        raise CollectError(f"expected targets and labels, found {quote(group)}", where=where)
    addresses, labels = group["targets"], group.get("labels") or {}
    if not all(isinstance(address, str) and address for address in addresses):
        raise CollectError(f"expected addresses such as 10.0.0.7:9400, found {quote(addresses)}", where=where)
    # In YAML `on` is a boolean, both as a value and as a name.
    if not isinstance(labels, dict) or not all(isinstance(text, str) for pair in labels.items() for text in pair):
        raise CollectError(f"labels must be text, found {quote(labels)}", where=where)
    return addresses, labels


def _node(group_labels: Mapping[str, str], where: str, *, cluster: str) -> fleet.Node | None:
    name = group_labels.get(META + "node")
    if not name:
        return None
    expected = group_labels.get(META + "expected_gpus", "")
    if expected and not (expected.isascii() and expected.isdigit() and len(expected) < 6):
        raise CollectError(f"{META}expected_gpus must be a whole number, found {quote(expected)}", where=where)
    aliases = group_labels.get(META + "aliases", "").split(",")
    return fleet.Node(
        cluster,
        name,
        pool=group_labels.get(META + "pool", ""),
        aliases=frozenset(alias.strip() for alias in aliases if alias.strip()),
        expected_gpus=int(expected) if expected else None,
        domains={
            key.removeprefix(DOMAIN_META): value
            for key, value in group_labels.items()
            if key.startswith(DOMAIN_META) and value
        },
        source=where.partition(": group")[0],
    )
