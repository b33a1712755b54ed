"""Finding the fleet: Prometheus `file_sd` and `http_sd` lists become targets and expected nodes.

The lists carry what Watchkeeper wants to know beyond addresses in `__meta_watchkeeper_*` labels: which
node a target belongs to, how many GPUs it should have, in which failure domains it lies. The hub calls
`refresh` now and then and gives the targets to the scraper and the nodes to the `Fleet`. A source that
breaks keeps its last good list.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from watchkeeper.collect import http
from watchkeeper.errors import CollectError, quote
from watchkeeper.model import fleet, labels

META = "__meta_watchkeeper_"
DOMAIN = META + "domain_"
# One node each, a few targets a node: the largest fleet one hub is meant for has 2,500 nodes.
MAX_TARGETS = 20_000


@dataclass(frozen=True, slots=True)
class Target:
    """One page to scrape. `labels` are attached to every sample; `discovered` is what the source said."""

    address: str
    url: str
    labels: labels.Labels
    cluster: str
    node: str | None = None
    discovered: Mapping[str, str] = field(default_factory=dict, hash=False)

    @property
    def key(self) -> str:
        """Stable name of the target: its labels move with the inventory, its URL and job do not."""
        return f"{self.labels.get('job', '')} {self.url}"


@dataclass(frozen=True, slots=True)
class Found:
    targets: tuple[Target, ...] = ()
    nodes: tuple[fleet.Node, ...] = ()


@dataclass(frozen=True, slots=True)
class Defaults:
    """What a list may leave out."""

    cluster: str = "main"
    job: str = "gpu"


@dataclass(slots=True)
class Source:
    """A list of targets somewhere: a file path or an http(s) address, with the last good answer."""

    location: str
    found: Found = Found()
    good_at: datetime | None = None
    problem: str | None = None


class Discovery:
    """All sources of a fleet, refreshed together."""

    def __init__(self, locations: Iterable[str], *, defaults: Defaults | None = None) -> None:
        self.sources = [Source(location) for location in locations]
        self._defaults = defaults or Defaults()

    async def refresh(self, now: datetime) -> Found:
        """Everything the sources know, each by its last good list; `Source.problem` says which are not current."""
        for source in self.sources:
            try:
                document = await _fetch(source.location)
                source.found = read_groups(document, source.location, defaults=self._defaults)
                source.good_at, source.problem = now, None
            except CollectError as error:
                error.now = _what_stays(source)
                source.problem = str(error)
        return merge(source.found for source in self.sources)

    def problems(self) -> list[str]:
        return [source.problem for source in self.sources if source.problem is not None]


def read_groups(document: bytes, where: str, *, defaults: Defaults) -> Found:
    """Targets and nodes of one list; one bad group makes the whole list unusable, as in Prometheus."""
    try:
        groups = json.loads(document)
    except ValueError as error:
        raise CollectError(f"not JSON: {error}", where=where) from error
    if not isinstance(groups, list):
        raise CollectError(f"expected a list of target groups, found {quote(groups)}", where=where)
    targets: list[Target] = []
    nodes: list[fleet.Node] = []
    for number, group in enumerate(groups, 1):
        addresses, named = _check_group(group, f"{where}: group {number}")
        node = _node(named, f"{where}: group {number}", defaults=defaults)
        if node is not None:
            nodes.append(node)
        targets += [_target(address, named, node, defaults=defaults) for address in addresses]
    if len(targets) > MAX_TARGETS:
        raise CollectError(f"lists {len(targets)} targets, the limit is {MAX_TARGETS}", where=where)
    return merge([Found(tuple(targets), tuple(nodes))])


def merge(parts: Iterable[Found]) -> Found:
    """One list without repeats; of two entries for a node, the first that knows a thing wins."""
    targets: dict[str, Target] = {}
    nodes: dict[tuple[str, str], fleet.Node] = {}
    for found in parts:
        for target in found.targets:
            targets.setdefault(target.key, target)
        for node in found.nodes:
            known = nodes.get((node.cluster, node.name))
            nodes[node.cluster, node.name] = node if known is None else _join(known, node)
    return Found(tuple(targets.values()), tuple(nodes.values()))


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


async def _fetch(location: str) -> bytes:
    if location.startswith(("http://", "https://")):
        connection = http.Connection()
        try:
            response = await connection.send(http.Request(location, headers={"Accept": "application/json"}))
        finally:
            await connection.aclose()
        if response.status != 200:
            raise CollectError(f"answered {response.status}", where=location)
        return response.body
    try:
        return Path(location).read_bytes()
    except OSError as error:
        raise CollectError(f"cannot be read: {error.strerror}", where=location) from error


def _check_group(group: Any, where: str) -> tuple[list[str], dict[str, str]]:
    if not isinstance(group, dict) or not isinstance(group.get("targets"), list):
        raise CollectError(f"expected targets and labels, found {quote(group)}", where=where)
    addresses, named = group["targets"], group.get("labels") or {}
    if not all(isinstance(address, str) and address for address in addresses):
        raise CollectError(f"expected addresses such as 10.0.0.7:9400, found {quote(addresses)}", where=where)
    if not isinstance(named, dict) or not all(isinstance(value, str) for value in named.values()):
        raise CollectError(f"labels must be text, found {quote(named)}", where=where)
    return addresses, named


def _node(named: Mapping[str, str], where: str, *, defaults: Defaults) -> fleet.Node | None:
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
        domains={key.removeprefix(DOMAIN): value for key, value in named.items() if key.startswith(DOMAIN) and value},
        source=where.partition(": group")[0],
    )


def _target(address: str, named: Mapping[str, str], node: fleet.Node | None, *, defaults: Defaults) -> Target:
    cluster = node.cluster if node is not None else named.get(META + "cluster") or defaults.cluster
    given = {name: value for name, value in named.items() if not name.startswith("__")}
    instance = node.name if node is not None else address
    return Target(
        address,
        f"{named.get('__scheme__', 'http')}://{address}{named.get('__metrics_path__', '/metrics')}",
        labels.Labels({"job": defaults.job, "instance": instance, "cluster": cluster} | given),
        cluster,
        node=node.name if node is not None else None,
        discovered={"__address__": address, **named},
    )


def _what_stays(source: Source) -> str:
    if source.good_at is None:
        return "No target of this source is known"
    return f"The {len(source.found.targets)} targets read at {source.good_at:%H:%M} stay in force"
