"""One mapping for the whole fleet: rack, leaf, pool, NVLink domain, expected GPUs, team and project.

Each thing is taken from the first that says it: the inventory file, the lists of targets, the schedulers (labels of
Kubernetes nodes, Slurm's partitions, Gres and topology), the fabric's own map, and at last what the agents say of
themselves. Where two disagree, the first counts and the disagreement is said; what nobody says is unmapped, counted,
and never guessed. The hub's `clusters` calls `merged` with every look at the fleet and `Owners` with every set of
standing series.
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
# What a node should have; a report names the nodes that lack one of these.
FACTS = (POOL, "rack", "leaf", "nvlink", EXPECTED)
# Sentences about disagreements that are shown; the rest is counted.
MAX_SAID = 20
# Pods may carry their owner; a row of the inventory file goes first.
TEAM_LABEL, PROJECT_LABEL = "watchkeeper.dev/team", "watchkeeper.dev/project"

# Workloads whose owner is remembered after they ended: a fault often ends the job before anybody is told about it.
MAX_REMEMBERED = 50_000

NodeKey = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Owner:
    """Whose a workload is; `unmapped` where nobody says."""

    team: str = UNMAPPED
    project: str = ""


class NodeInventory:
    """The file, and what came of the last merge; SettingsError for a file that is wrong from the start."""

    def __init__(self, path: Path | None, *, default_cluster: str, metrics: own_metrics.Registry) -> None:
        self._path = path
        self._default_cluster = default_cluster
        self._read_at: files.FileStamp | None = None
        self.file = inventory_file.InventoryFile()
        self._file_problem: str | None = None
        self._said: tuple[str, ...] = ()
        self._unmapped = metrics.gauge("watchkeeper_inventory_unmapped_nodes", "Nodes of which nobody says the `fact`")
        self._conflicts = metrics.gauge(
            "watchkeeper_inventory_conflicts", "Nodes of which two sources say a different `fact`; the first counts"
        )
        if path is not None:
            self._read_at = files.read_stamp(path)
            self.file = inventory_file.read(path)

    def refresh(self) -> None:
        """Read the file again if it has changed; a file that is no longer right leaves the last good one in force."""
        if self._path is None:
            return
        stamp = files.read_stamp(self._path)
        if stamp is None or stamp != self._read_at:
            try:
                self.file = inventory_file.read(self._path)
            except SettingsError as error:
                self._fail(str(error))
                return
        self._read_at, self._file_problem = stamp, None

    def _fail(self, problem: str) -> None:
        stays = (
            f"The {len(self.file.nodes)} rows of nodes and {len(self.file.teams)} of teams read before stay in force"
        )
        said = f"{problem}. {stays}"
        if said != self._file_problem:
            log.error("Inventory not read", extra=logs.fields(problem=said))
        self._file_problem = said

    def problems(self) -> list[str]:
        """What people should know: a broken file, two nodes with one name, sources that disagree."""
        return [*([self._file_problem] if self._file_problem else []), *self._said]

    def merge(
        self, parts: Sequence[discovery.DiscoveredTargets], *, leaves: Mapping[str, str] | None = None
    ) -> discovery.DiscoveredTargets:
        """All parts as one, facts from the file first; `leaves` is node → leaf as the fabric shows it."""
        self.refresh()
        found = discovery.merge_discovered(parts)
        said: dict[NodeKey, list[fleet.Node]] = defaultdict(list)
        for part in parts:
            for node in part.nodes:
                said[node.cluster, node.name].append(node)
        for key in self._expected_names():
            said.setdefault(key, [])
        problems: list[str] = []
        nodes: dict[NodeKey, fleet.Node] = {}
        counts: Counter[str] = Counter()
        for key, entries in said.items():
            ordered = [*self._of_file(key), *entries, *_of_fabric(key, leaves or {})]
            nodes[key] = _join(ordered, problems, counts)
        kept = _without_clashes(nodes, problems)
        self._note(kept.values(), problems, counts)
        return replace(found, nodes=tuple(kept.values()))

    def _expected_names(self) -> Iterable[NodeKey]:
        for row in self.file.nodes:
            for name in row.names:
                yield row.cluster or self._default_cluster, name

    def _of_file(self, key: NodeKey) -> list[fleet.Node]:
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
            for row in self.file.rows_of(cluster, name)
        ]

    def _note(self, nodes: Iterable[fleet.Node], problems: list[str], counts: Counter[str]) -> None:
        lacking = count_missing_facts(nodes)
        for fact in FACTS:
            self._unmapped.set(lacking[fact], fact=fact)
            self._conflicts.set(counts[fact], fact=fact)
        rest = len(problems) - MAX_SAID
        self._said = (*problems[:MAX_SAID], *([f"and {rest} more disagreements about nodes"] if rest > 0 else []))

    def owner(self, workload: ScheduledWorkload) -> Owner:
        """Team and project: a row of the file, the pod's own labels, its namespace, or its Slurm account."""
        asked = workload.workload
        return self.owner_of(
            namespace=asked.namespace,
            account=workload.account,
            user=asked.user or workload.owner,
            labels=workload.labels,
        )

    def owner_of(
        self, *, namespace: str = "", account: str = "", user: str = "", labels: Mapping[str, str] | None = None
    ) -> Owner:
        own = labels or {}
        for row in self.file.teams:
            if row.fits(namespace=namespace, account=account, user=user, labels=own):
                return Owner(row.team, row.project or own.get(PROJECT_LABEL, ""))
        return Owner(own.get(TEAM_LABEL) or namespace or account or UNMAPPED, own.get(PROJECT_LABEL, ""))


WorkloadKey = tuple[str, str, str, str]


@dataclass(frozen=True, slots=True)
class _OwnedSeries:
    """A series with its owner, kept from one time to the next: most of 20,000 do not change."""

    key: WorkloadKey
    owner: Owner
    labels: Labels


class Owners:
    """Team and project on the series that say who holds a GPU, and the team of whoever held one."""

    def __init__(self, inventory: NodeInventory) -> None:
        self._inventory = inventory
        self._named: dict[Labels, _OwnedSeries] = {}
        self._teams: dict[str, str] = {}
        # By the names of jobs, which are those of their pods without an ending; `unmapped` where teams share one.
        self._job_teams: dict[str, str] = {}

    def add_owners(self, series: Mapping[Labels, float], views: Iterable[cluster.ClusterView]) -> dict[Labels, float]:
        """The same series, each with its owner; a workload that no scheduler knows is judged by its own labels."""
        known = {
            (one.cluster, one.workload.namespace, one.workload.name): one for view in views for one in view.workloads
        }
        owners: dict[WorkloadKey, Owner] = {}
        kept: dict[Labels, _OwnedSeries] = {}
        for labels in series:
            before = self._named.get(labels)
            key = _workload_key(labels) if before is None else before.key
            owner = owners.get(key)
            if owner is None:
                owner = owners[key] = self._owner(key, known.get(key[:3]))
            if before is None or before.owner != owner:
                before = _OwnedSeries(key, owner, labels.with_labels(team=owner.team, project=owner.project))
            kept[labels] = before
        self._named = kept
        self._remember(owners)
        return {kept[labels].labels: value for labels, value in series.items()}

    def team_of(self, workload: str) -> str:
        """The team of a workload as incidents write it: `namespace/pod`, a Slurm job's number, or a job's own name."""
        known = self._teams.get(workload) or self._job_teams.get(workload)
        return known or self._inventory.owner_of(namespace=workload.rpartition("/")[0]).team

    def _remember(self, owners: Mapping[WorkloadKey, Owner]) -> None:
        for (_, namespace, name, _), owner in owners.items():
            called = workloads.workload_name(namespace, name)
            if (before := self._teams.get(called)) != owner.team:
                self._teams[called] = owner.team
                if namespace:
                    job = jobs.job_name(name)
                    is_shared = self._job_teams.get(job, before) not in (before, owner.team)
                    self._job_teams[job] = UNMAPPED if is_shared else owner.team
        for kept in (self._teams, self._job_teams):
            for oldest in list(kept)[: max(0, len(kept) - MAX_REMEMBERED)]:
                del kept[oldest]

    def _owner(self, key: WorkloadKey, scheduled: ScheduledWorkload | None) -> Owner:
        if scheduled is not None:
            return self._inventory.owner(scheduled)
        return self._inventory.owner_of(namespace=key[1], user=key[3])


def _workload_key(labels: Labels) -> WorkloadKey:
    named = dict(labels.pairs)
    return named.get("cluster", ""), named.get("namespace", ""), named.get("workload", ""), named.get("user", "")


def missing_facts(node: fleet.Node) -> list[str]:
    """The facts that nobody has said about a node."""
    have = {POOL: node.pool, EXPECTED: "" if node.expected_gpus is None else "known", **node.domains}
    return [fact for fact in FACTS if not have.get(fact)]


def count_missing_facts(nodes: Iterable[fleet.Node]) -> dict[str, int]:
    """Of how many of these nodes nobody says each fact: the line that every report about nodes has."""
    lacking = Counter(fact for node in nodes for fact in missing_facts(node))
    return {fact: lacking[fact] for fact in FACTS}


def _of_fabric(key: NodeKey, leaves: Mapping[str, str]) -> list[fleet.Node]:
    leaf = leaves.get(key[1])
    return [fleet.Node(*key, domains={"leaf": leaf}, source=FABRIC)] if leaf else []


def _join(entries: Sequence[fleet.Node], problems: list[str], counts: Counter[str]) -> fleet.Node:
    """One node of what several say: each fact from the first that has it."""
    first = entries[0]
    facts: dict[str, tuple[str, str]] = {}
    for entry in entries:
        said = {POOL: entry.pool, EXPECTED: "" if entry.expected_gpus is None else str(entry.expected_gpus)}
        for fact, value in {**said, **entry.domains}.items():
            if not value:
                continue
            before = facts.setdefault(fact, (value, entry.source))
            if before[0] != value and before[1] != entry.source:
                counts[fact] += 1
                # A Slurm partition and a Kubernetes pool have different names for the same thing everywhere.
                if fact != POOL:
                    problems.append(
                        f"node {first.name}: {fact} is {before[0]} by {before[1]} and {value} by {entry.source};"
                        f" {before[0]} counts"
                    )
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


def _without_clashes(nodes: Mapping[NodeKey, fleet.Node], problems: list[str]) -> dict[NodeKey, fleet.Node]:
    """The nodes without aliases that mean two of them; one name in two clusters is said, as pages show it twice."""
    clusters: dict[str, list[str]] = defaultdict(list)
    meant: Counter[tuple[str, str]] = Counter()
    for (cluster_name, name), node in nodes.items():
        clusters[name].append(cluster_name)
        meant.update((cluster_name, alias) for alias in {name, *node.aliases})
    for name, found in clusters.items():
        if len(found) > 1:
            problems.append(f"node {name} is in the clusters {', '.join(sorted(found))}: two nodes with one name")
    kept: dict[NodeKey, fleet.Node] = {}
    for key, node in nodes.items():
        shared = sorted(alias for alias in node.aliases if meant[node.cluster, alias] > 1)
        if shared:
            problems.append(f"node {node.name}: the alias {shared[0]} names another node as well, and is not used")
        kept[key] = replace(node, aliases=node.aliases - set(shared)) if shared else node
    return kept
