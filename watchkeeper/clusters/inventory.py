"""Merge all sources of the inventory: rack, leaf, pool, NVLink domain and expected GPUs of nodes, owners of workloads.

Each fact comes from the first source that has it: the inventory file, the lists of targets, the schedulers (labels of
Kubernetes nodes; partitions, Gres and topology of Slurm), the agents, and the fabric. A conflict is reported; a fact
without a source is unmapped and counted, never guessed.
"""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from watchkeeper.clusters import inventory_file
from watchkeeper.errors import SettingsError
from watchkeeper.kit import files, logs, own_metrics
from watchkeeper.model import cluster, fleet, jobs, workloads
from watchkeeper.model.labels import Labels
from watchkeeper.model.workloads import ScheduledWorkload
from watchkeeper.scrape import discovery

log = logging.getLogger(__name__)

SOURCE = "inventory"
FABRIC = "fabric"
UNMAPPED = fleet.UNMAPPED
POOL, EXPECTED = "pool", "expected_gpus"
# The facts that every node should have; reports count the nodes without them.
FACTS = (POOL, "rack", "leaf", "nvlink", EXPECTED)
# Above this, conflicts are only counted.
MAX_SHOWN_PROBLEMS = 20
# Labels of a pod that name its owner; a row of the inventory file has priority.
TEAM_LABEL, PROJECT_LABEL = "watchkeeper.dev/team", "watchkeeper.dev/project"

# Owners are kept after their workload ended: a fault often ends the job before the notification is sent.
MAX_REMEMBERED = 50_000

NodeKey = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Owner:
    """The team and project of a workload; the team is `unmapped` if unknown."""

    team: str = UNMAPPED
    project: str = ""


class NodeInventory:
    """The inventory file, and the problems of the last merge; SettingsError if the file is invalid at startup."""

    def __init__(self, path: Path | None, *, default_cluster: str, metrics: own_metrics.Registry) -> None:
        self._path = path
        self._default_cluster = default_cluster
        self._file_stamp: files.FileStamp | None = None
        self.file = inventory_file.InventoryFile()
        self._file_problem: str | None = None
        self._node_problems: tuple[str, ...] = ()
        self._unmapped = metrics.gauge(
            "watchkeeper_inventory_unmapped_nodes", "Nodes for which no source has the `fact`"
        )
        self._conflicts = metrics.gauge(
            "watchkeeper_inventory_conflicts",
            "Nodes for which two sources disagree about the `fact`; the first source is used",
        )
        if path is not None:
            self._file_stamp = files.read_stamp(path)
            self.file = inventory_file.read(path)

    def refresh(self) -> None:
        """Reload the file if it has changed; if it is invalid, the last good one stays in force."""
        if self._path is None:
            return
        stamp = files.read_stamp(self._path)
        if stamp is None or stamp != self._file_stamp:
            try:
                self.file = inventory_file.read(self._path)
            except SettingsError as error:
                rows = f"{len(self.file.nodes)} node rows and {len(self.file.teams)} team rows"
                message = f"{error}. The {rows} loaded before stay in force"
                if message != self._file_problem:
                    log.error("inventory reload failed", extra=logs.fields(problem=message))
                self._file_problem = message
                return
        self._file_stamp, self._file_problem = stamp, None

    def problems(self) -> list[str]:
        """An invalid file, nodes with the same name, and conflicts between sources."""
        return [*([self._file_problem] if self._file_problem else []), *self._node_problems]

    def merge(
        self, parts: Sequence[discovery.DiscoveredTargets], *, leaves: Mapping[str, str] | None = None
    ) -> discovery.DiscoveredTargets:
        """Merge all parts, facts of the file first; `leaves` is node → leaf from the fabric."""
        self.refresh()
        merged = discovery.merge_discovered(parts)
        reported_nodes: dict[NodeKey, list[fleet.Node]] = defaultdict(list)
        for part in parts:
            for node in part.nodes:
                reported_nodes[node.cluster, node.name].append(node)
        for row in self.file.nodes:
            for name in row.names:
                reported_nodes.setdefault((row.cluster or self._default_cluster, name), [])
        problems: list[str] = []
        nodes: dict[NodeKey, fleet.Node] = {}
        conflict_counts: Counter[str] = Counter()
        for key, entries in reported_nodes.items():
            if leaf := (leaves or {}).get(key[1]):
                entries.append(fleet.Node(*key, domains={"leaf": leaf}, source=FABRIC))
            nodes[key] = _merge_node([*self._file_nodes(key), *entries], problems, conflict_counts)
        merged_nodes = _drop_shared_aliases(nodes, problems)
        self._record_problems(merged_nodes.values(), problems, conflict_counts)
        return replace(merged, nodes=tuple(merged_nodes.values()))

    def _file_nodes(self, key: NodeKey) -> list[fleet.Node]:
        cluster, name = key
        return [
            fleet.Node(
                cluster,
                name,
                pool=row.fill(row.pool, name),
                aliases=frozenset(row.fill(alias, name) for alias in row.aliases),
                expected_gpus=row.expected_gpus,
                domains={kind: row.fill(text, name) for kind, text in row.domains.items()},
                source=SOURCE,
            )
            for row in self.file.matching_rows(cluster, name)
        ]

    def _record_problems(self, nodes: Iterable[fleet.Node], problems: list[str], conflict_counts: Counter[str]) -> None:
        missing = count_missing_facts(nodes)
        for fact in FACTS:
            self._unmapped.set(missing[fact], fact=fact)
            self._conflicts.set(conflict_counts[fact], fact=fact)
        rest = len(problems) - MAX_SHOWN_PROBLEMS
        more = [f"and {rest} more conflicts about nodes"] if rest > 0 else []
        self._node_problems = (*problems[:MAX_SHOWN_PROBLEMS], *more)

    def owner(self, workload: ScheduledWorkload) -> Owner:
        """Team and project from a row of the file, the pod's labels, its namespace, or its Slurm account."""
        namespace, user = workload.workload.namespace, workload.workload.user or workload.owner
        return self.owner_of(namespace=namespace, account=workload.account, user=user, labels=workload.labels)

    def owner_of(
        self, *, namespace: str = "", account: str = "", user: str = "", labels: Mapping[str, str] | None = None
    ) -> Owner:
        workload_labels = labels or {}
        project = workload_labels.get(PROJECT_LABEL, "")
        for row in self.file.teams:
            if row.matches(namespace=namespace, account=account, user=user, labels=workload_labels):
                return Owner(row.team, row.project or project)
        return Owner(workload_labels.get(TEAM_LABEL) or namespace or account or UNMAPPED, project)


WorkloadKey = tuple[str, str, str, str]


@dataclass(frozen=True, slots=True)
class _OwnedSeries:
    """A series with its owner labels, cached because most of 20,000 do not change."""

    key: WorkloadKey
    owner: Owner
    labels: Labels


class Owners:
    """Add team and project to the series of GPU holders, and remember the team of each holder."""

    def __init__(self, inventory: NodeInventory) -> None:
        self._inventory = inventory
        self._owned_series: dict[Labels, _OwnedSeries] = {}
        self._teams: dict[str, str] = {}
        # By job name, which is the pod name without its suffix; `unmapped` if two teams use the same name.
        self._job_teams: dict[str, str] = {}

    def add_owners(self, series: Mapping[Labels, float], views: Iterable[cluster.ClusterView]) -> dict[Labels, float]:
        """Add the owner to each series; without a scheduler's entry it comes from the labels of the series."""
        scheduled = {
            (workload.cluster, workload.workload.namespace, workload.workload.name): workload
            for view in views
            for workload in view.workloads
        }
        owners: dict[WorkloadKey, Owner] = {}
        owned_series: dict[Labels, _OwnedSeries] = {}
        for labels in series:
            owned = self._owned_series.get(labels)
            key = _workload_key(labels) if owned is None else owned.key
            owner = owners.get(key)
            if owner is None:
                workload = scheduled.get(key[:3])
                owner = owners[key] = (
                    self._inventory.owner_of(namespace=key[1], user=key[3])
                    if workload is None
                    else self._inventory.owner(workload)
                )
            if owned is None or owned.owner != owner:
                owned = _OwnedSeries(key, owner, labels.with_labels(team=owner.team, project=owner.project))
            owned_series[labels] = owned
        self._owned_series = owned_series
        self._remember(owners)
        return {owned_series[labels].labels: value for labels, value in series.items()}

    def team_of(self, workload: str) -> str:
        """The team of a workload, named as in incidents: `namespace/pod`, a Slurm job id, or a job name."""
        team = self._teams.get(workload) or self._job_teams.get(workload)
        return team or self._inventory.owner_of(namespace=workload.rpartition("/")[0]).team

    def _remember(self, owners: Mapping[WorkloadKey, Owner]) -> None:
        for (_, namespace, name, _), owner in owners.items():
            full_name = workloads.workload_name(namespace, name)
            if (before := self._teams.get(full_name)) != owner.team:
                self._teams[full_name] = owner.team
                if namespace:
                    job = jobs.job_name(name)
                    is_shared = self._job_teams.get(job, before) not in (before, owner.team)
                    self._job_teams[job] = UNMAPPED if is_shared else owner.team
        for teams in (self._teams, self._job_teams):
            for oldest in list(teams)[: max(0, len(teams) - MAX_REMEMBERED)]:
                del teams[oldest]


def _workload_key(labels: Labels) -> WorkloadKey:
    values = dict(labels.pairs)
    return values.get("cluster", ""), values.get("namespace", ""), values.get("workload", ""), values.get("user", "")


def missing_facts(node: fleet.Node) -> list[str]:
    """The facts of a node that no source has."""
    facts = {POOL: node.pool, EXPECTED: "" if node.expected_gpus is None else "known", **node.domains}
    return [fact for fact in FACTS if not facts.get(fact)]


def count_missing_facts(nodes: Iterable[fleet.Node]) -> dict[str, int]:
    """For each fact, the number of nodes without it; every report about nodes shows it."""
    missing = Counter(fact for node in nodes for fact in missing_facts(node))
    return {fact: missing[fact] for fact in FACTS}


def _merge_node(entries: Sequence[fleet.Node], problems: list[str], conflict_counts: Counter[str]) -> fleet.Node:
    """Merge the entries of one node: each fact from the first entry that has it."""
    first = entries[0]
    facts: dict[str, tuple[str, str]] = {}
    for entry in entries:
        fields = {POOL: entry.pool, EXPECTED: "" if entry.expected_gpus is None else str(entry.expected_gpus)}
        for fact, value in {**fields, **entry.domains}.items():
            if not value:
                continue
            kept = facts.setdefault(fact, (value, entry.source))
            if kept[0] != value and kept[1] != entry.source:
                conflict_counts[fact] += 1
                # Slurm partitions and Kubernetes pools usually have different names for the same nodes.
                if fact != POOL:
                    conflict = f"{fact} is {kept[0]} ({kept[1]}) but {value} ({entry.source})"
                    problems.append(f"node {first.name}: {conflict}; {kept[0]} is used")
    expected = facts.pop(EXPECTED, None)
    return fleet.Node(
        first.cluster,
        first.name,
        pool=facts.pop(POOL, ("", ""))[0],
        aliases=frozenset().union(*(entry.aliases for entry in entries)) - {first.name},
        expected_gpus=None if expected is None else int(expected[0]),
        domains={fact: value for fact, (value, _) in facts.items()},
        source=first.source,
    )


def _drop_shared_aliases(nodes: Mapping[NodeKey, fleet.Node], problems: list[str]) -> dict[NodeKey, fleet.Node]:
    """Drop aliases that match two nodes, and report node names that exist in two clusters."""
    clusters: dict[str, list[str]] = defaultdict(list)
    alias_counts: Counter[tuple[str, str]] = Counter()
    for (cluster_name, name), node in nodes.items():
        clusters[name].append(cluster_name)
        alias_counts.update((cluster_name, alias) for alias in {name, *node.aliases})
    for name, cluster_names in clusters.items():
        if len(cluster_names) > 1:
            clusters_text = ", ".join(sorted(cluster_names))
            problems.append(f"node {name} is in the clusters {clusters_text}: two nodes with one name")
    cleared = dict(nodes)
    for key, node in nodes.items():
        if shared := sorted(alias for alias in node.aliases if alias_counts[node.cluster, alias] > 1):
            problems.append(f"node {node.name}: the alias {shared[0]} also matches another node and is not used")
            cleared[key] = replace(node, aliases=node.aliases - set(shared))
    return cleared
