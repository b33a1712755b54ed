"""Finding the fleet: lists of targets in Prometheus' forms become targets and expected nodes.

A list is a file (`file_sd`, JSON or YAML), an address (`http_sd`), a DNS name, or written out in a job. It may
carry what Watchkeeper wants to know beyond addresses in `__meta_watchkeeper_*` labels: which node a target
belongs to, how many GPUs it should have, in which failure domains it lies. The hub calls `refresh` now and
then and gives the targets to the scraper and the nodes to the `Fleet`. A source that breaks keeps its last
good list.
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
from watchkeeper.scrape import prometheus_config
from watchkeeper.scrape.jobs import DiscoveryKind, DroppedTarget, ScrapeJob, Target, TargetListLocation, build_target

__all__ = [
    "DiscoveredTargets",
    "Discovery",
    "DiscoveryDefaults",
    "DroppedTarget",
    "Target",
    "TargetSource",
    "merge_discovered",
    "read_groups",
]

META = "__meta_watchkeeper_"
DOMAIN_META = META + "domain_"
# A few targets a node, and more nodes than the 12,500 of 100,000 GPUs.
MAX_TARGETS = 100_000
WILDCARDS = frozenset("*?[")
FAMILIES = {"A": socket.AF_INET, "AAAA": socket.AF_INET6}


@dataclass(frozen=True, slots=True)
class DiscoveredTargets:
    targets: tuple[Target, ...] = ()
    nodes: tuple[fleet.Node, ...] = ()
    dropped: tuple[DroppedTarget, ...] = ()
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DiscoveryDefaults:
    """What a list may leave out."""

    cluster: str = "main"
    job: str = "gpu"


@dataclass(slots=True)
class TargetSource:
    """A list of targets somewhere, with the last good answer."""

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
        defaults: DiscoveryDefaults | None = None,
        config: Path | None = None,
        resolver: dns.Resolver | None = None,
    ) -> None:
        # None is the system's, read from its file at each use.
        self._resolver = resolver
        self._defaults = defaults or DiscoveryDefaults()
        own = ScrapeJob(name=self._defaults.job)
        self._own = [TargetSource(own, _place(location)) for location in locations]
        self._config = None if config is None else prometheus_config.ConfigReader(config)
        self._of_jobs: dict[tuple[str, TargetListLocation], TargetSource] = {}
        self._crowded: list[str] = []

    @property
    def sources(self) -> list[TargetSource]:
        return [*self._own, *self._of_jobs.values()]

    async def refresh(self, now: datetime) -> DiscoveredTargets:
        """Everything the sources know, each by its last good list; `problems` says which are not current."""
        if self._config is not None and self._config.reload():
            self._take_jobs(self._config.config.jobs)
        await asyncio.gather(*(self._refresh_one(source, now) for source in self.sources))
        return self._without_crowds(merge_discovered(source.discovered for source in self.sources))

    def _without_crowds(self, found: DiscoveredTargets) -> DiscoveredTargets:
        """Without the targets of a job that has more than its `target_limit`: none is read, as in Prometheus."""
        counts = Counter(target.job_name for target in found.targets)
        limits = {target.job_name: target.job.max_targets for target in found.targets}
        crowded = {name for name, limit in limits.items() if limit is not None and counts[name] > limit}
        self._crowded = [
            f"job {name}: {counts[name]} targets, its target_limit is {limits[name]}; none of them is read"
            for name in sorted(crowded)
        ]
        kept = tuple(target for target in found.targets if target.job_name not in crowded)
        return replace(found, targets=kept) if crowded else found

    def problems(self) -> list[str]:
        found = [] if self._config is None else list(self._config.problems)
        found += self._crowded
        for source in self.sources:
            found += [source.problem] if source.problem is not None else []
            found += source.discovered.problems
        return found

    def _take_jobs(self, jobs: Sequence[ScrapeJob]) -> None:
        before, self._of_jobs = self._of_jobs, {}
        for job in jobs:
            for place in job.places:
                source = before.get((job.name, place)) or TargetSource(job, place)
                source.job = job
                self._of_jobs[job.name, place] = source

    async def _refresh_one(self, source: TargetSource, now: datetime) -> None:
        try:
            defaults = self._defaults
            if self._config is not None and self._config.config.cluster and source not in self._own:
                defaults = DiscoveryDefaults(cluster=self._config.config.cluster, job=defaults.job)
            documents, job = await _fetch(source.location, self._resolver), source.job

            def read() -> DiscoveredTargets:
                return merge_discovered(
                    read_groups(document, where, defaults=defaults, job=job) for where, document in documents
                )

            # The list of a large fleet takes a tenth of a second.
            source.discovered = await asyncio.to_thread(read)
            source.succeeded_at, source.problem = now, None
        except CollectError as error:
            error.now = _what_stays(source)
            source.problem = str(error)


def read_groups(
    document: bytes | list[Any], where: str, *, defaults: DiscoveryDefaults, job: ScrapeJob | None = None
) -> DiscoveredTargets:
    """Targets and nodes of one list; one bad group makes the whole list unusable, as in Prometheus."""
    groups = _parse(document, where) if isinstance(document, bytes) else document
    if not isinstance(groups, list):
        raise CollectError(f"expected a list of target groups, found {quote(groups)}", where=where)
    job = job or ScrapeJob(name=defaults.job)
    made: list[Target | DroppedTarget] = []
    nodes: list[fleet.Node] = []
    problems: list[str] = []
    checked = [_check_group(group, f"{where}: group {number}") for number, group in enumerate(groups, 1)]
    listed = sum(len(addresses) for addresses, _ in checked)
    if listed > MAX_TARGETS:
        raise CollectError(f"lists {listed} targets, the limit is {MAX_TARGETS}", where=where)
    for number, (addresses, named) in enumerate(checked, 1):
        node = _node(named, f"{where}: group {number}", defaults=defaults)
        if node is not None:
            nodes.append(node)
        cluster = named.get(META + "cluster") or defaults.cluster
        for address in addresses:
            try:
                made.append(build_target(address, named, job, node=node, cluster=cluster))
            except CollectError as error:
                problems.append(f"{where}: group {number}: target {quote(address)} is left out: {error}")
    targets = tuple(one for one in made if isinstance(one, Target))
    dropped = tuple(one for one in made if isinstance(one, DroppedTarget))
    return merge_discovered([DiscoveredTargets(targets, tuple(nodes), dropped, tuple(problems[:10]))])


def merge_discovered(parts: Iterable[DiscoveredTargets]) -> DiscoveredTargets:
    """One list without repeats; of two entries for a node, the first that knows a thing wins."""
    targets: dict[str, Target] = {}
    nodes: dict[tuple[str, str], fleet.Node] = {}
    dropped: list[DroppedTarget] = []
    problems: list[str] = []
    for found in parts:
        dropped += found.dropped
        problems += found.problems
        for target in found.targets:
            targets.setdefault(target.key, target)
        for node in found.nodes:
            known = nodes.get((node.cluster, node.name))
            nodes[node.cluster, node.name] = node if known is None else _join(known, node)
    return DiscoveredTargets(tuple(targets.values()), tuple(nodes.values()), tuple(dropped), tuple(problems))


def _join(first: fleet.Node, second: fleet.Node) -> fleet.Node:
    return fleet.Node(
        first.cluster,
        first.name,
        pool=first.pool or second.pool,
        aliases=first.aliases | second.aliases,
        expected_gpus=second.expected_gpus if first.expected_gpus is None else first.expected_gpus,
        domains={**second.domains, **first.domains},
        source=first.source,
    )


def _place(location: str) -> TargetListLocation:
    return TargetListLocation(
        DiscoveryKind.HTTP if location.startswith(("http://", "https://")) else DiscoveryKind.FILE, location
    )


async def _fetch(place: TargetListLocation, resolver: dns.Resolver | None) -> list[tuple[str, bytes | list[Any]]]:
    """The documents at a place, each with its name."""
    if place.kind is DiscoveryKind.STATIC:
        groups = [{"targets": list(addresses), "labels": dict(named)} for addresses, named in place.groups]
        return [(place.location, groups)]
    if place.kind is DiscoveryKind.DNS:
        return [(f"dns {place.location}", await _look_up(place, resolver))]
    if place.kind is DiscoveryKind.HTTP:
        return [(place.location, await _download(place))]
    named = WILDCARDS.intersection(place.location)
    paths = sorted(await asyncio.to_thread(glob.glob, place.location)) if named else [place.location]
    return [(path, await asyncio.to_thread(_read, path)) for path in paths]


async def _download(place: TargetListLocation) -> bytes | list[Any]:
    connection = http.Connection(access=place.access)
    headers = {"Accept": "application/json", **await place.access.request_headers()}
    try:
        response = await connection.send(http.Request(place.location, headers=headers))
    finally:
        await connection.aclose()
    if response.status != 200:
        raise CollectError(f"answered {response.status}", where=place.location)
    return await asyncio.to_thread(_with_meta, response.body, place.location, __meta_url=place.location)


async def _look_up(place: TargetListLocation, resolver: dns.Resolver | None) -> list[Any]:
    """SRV records one by one; A and AAAA records together, as the system's resolver knows them."""
    if place.record == "SRV":
        asked = await asyncio.to_thread(dns.system_resolver) if resolver is None else resolver
        return [_service_group(place.location, service) for service in await asked.srv_records(place.location)]
    loop = asyncio.get_running_loop()
    family = FAMILIES[place.record]
    try:
        answers = await loop.getaddrinfo(place.location, place.port, family=family, type=socket.SOCK_STREAM)
    except OSError as error:
        raise CollectError(f"the name is not known: {error}", where=f"dns {place.location}") from error
    hosts = sorted({str(answer[4][0]) for answer in answers})
    shown = [f"[{host}]:{place.port}" if ":" in host else f"{host}:{place.port}" for host in hosts]
    return [{"targets": shown, "labels": {"__meta_dns_name": place.location}}]


def _service_group(name: str, service: dns.SrvRecord) -> dict[str, Any]:
    """One SRV record with the labels that Prometheus gives it; its target keeps the dot at its end there."""
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
    """JSON, or YAML where the name of the file says so."""
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
    """The groups of a list, each with where it was found, as Prometheus' rules expect it."""
    groups = _parse(document, where)
    if not isinstance(groups, list):
        return document
    for group in groups:
        if isinstance(group, dict) and isinstance(group.get("labels") or {}, dict):
            group["labels"] = {**meta, **(group.get("labels") or {})}
    return groups


def _check_group(group: Any, where: str) -> tuple[list[str], dict[str, str]]:
    if not isinstance(group, dict) or not isinstance(group.get("targets"), list):
        raise CollectError(f"expected targets and labels, found {quote(group)}", where=where)
    addresses, named = group["targets"], group.get("labels") or {}
    if not all(isinstance(address, str) and address for address in addresses):
        raise CollectError(f"expected addresses such as 10.0.0.7:9400, found {quote(addresses)}", where=where)
    # In YAML `on` is no text, neither as a value nor as a name.
    if not isinstance(named, dict) or not all(isinstance(text, str) for pair in named.items() for text in pair):
        raise CollectError(f"labels must be text, found {quote(named)}", where=where)
    return addresses, named


def _node(named: Mapping[str, str], where: str, *, defaults: DiscoveryDefaults) -> fleet.Node | None:
    name = named.get(META + "node")
    if not name:
        return None
    expected = named.get(META + "expected_gpus", "")
    if expected and not (expected.isascii() and expected.isdigit() and len(expected) < 6):
        raise CollectError(f"{META}expected_gpus must be a whole number, found {quote(expected)}", where=where)
    aliases = named.get(META + "aliases", "").split(",")
    return fleet.Node(
        named.get(META + "cluster") or defaults.cluster,
        name,
        pool=named.get(META + "pool", ""),
        aliases=frozenset(alias.strip() for alias in aliases if alias.strip()),
        expected_gpus=int(expected) if expected else None,
        domains={
            key.removeprefix(DOMAIN_META): value
            for key, value in named.items()
            if key.startswith(DOMAIN_META) and value
        },
        source=where.partition(": group")[0],
    )


def _what_stays(source: TargetSource) -> str:
    if source.succeeded_at is None:
        return "No target of this source is known"
    return f"The {len(source.discovered.targets)} targets read at {source.succeeded_at:%H:%M} UTC stay in force"
