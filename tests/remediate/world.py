"""Repairs with everything around them: a journal on disk, a cluster in memory, incidents that open and end at will."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from tests.remediate.cluster import Machine, TestCluster, nodes
from watchkeeper.catalogue import causes
from watchkeeper.model import actions, alerts, events, fleet, incidents
from watchkeeper.model.repairs import Repair
from watchkeeper.model.trust import Mode
from watchkeeper.remediate import guards, validation
from watchkeeper.remediate.control import RepairControl
from watchkeeper.remediate.plan import make_plan
from watchkeeper.remediate.policy import RepairPolicy, load
from watchkeeper.remediate.proposal import RepairProposal, propose_repair
from watchkeeper.remediate.registry import RepairDependencies
from watchkeeper.remediate.repairs import Repairs
from watchkeeper.remediate.trust_rules import ModeDecision
from watchkeeper.store.journal.journal import Journal

NOON = datetime(2026, 5, 4, 12, 0, tzinfo=UTC)
# Everything allowed that a test is not about.
FREE = guards.GuardLimits(100, 100, 10_000, attempts=10_000, breaker_nodes=10_000, domains=())


@dataclass
class Healthy:
    """A check that asks the test cluster."""

    cluster: TestCluster
    name: str

    def check(self, place: fleet.Place, since: datetime, now: datetime) -> validation.CheckResult:
        if now - since < timedelta(seconds=5):
            return validation.CheckResult(self.name, validation.CheckState.UNKNOWN, "too early to say")
        is_sick = self.cluster.machines[place.node or ""].is_sick
        state = validation.CheckState.FAILED if is_sick else validation.CheckState.PASSED
        return validation.CheckResult(self.name, state, "sick" if is_sick else "fine")


@dataclass
class World:
    folder: Path
    count: int = 4
    limits: guards.GuardLimits = FREE
    mode: Mode = Mode.ACT
    policy: RepairPolicy = field(default_factory=load)
    now: datetime = NOON
    # What the settings of today say, where they are others than those of the plan.
    mode_decision: ModeDecision | None = None
    # What is said of workloads that are not in `used`.
    idle: validation.CheckState = validation.CheckState.PASSED
    used: set[str] = field(default_factory=set)
    # What is observed of a boot, and since when it was asked for; None: no source reports boots.
    boot: validation.CheckResult | None = None
    boot_since: datetime | None = None
    cluster_kind: type[TestCluster] = TestCluster
    # Checks beside those of each validation.
    checks: Sequence[validation.Validator] = ()

    def __post_init__(self) -> None:
        self.nodes: Sequence[fleet.Node] = nodes(self.count)
        self.cluster = self.cluster_kind({node.name: Machine() for node in self.nodes})
        self.reported: list[events.Event] = []
        self.journal = Journal(self.folder / "journal.sqlite")
        self.open()

    def open(self) -> None:
        dependencies = RepairDependencies(
            self.journal,
            self.cluster,
            self.limits,
            {
                **{name: Healthy(self.cluster, name) for name in validation.CHECKS},
                **{check.name: check for check in self.checks},
            },
            list_nodes=lambda: self.nodes,
            report_event=self.reported.append,
            current_mode=lambda _: self.mode_decision,
            check_idle=self.look_for_use,
            check_boot=self.look_for_boot,
        )
        self.repairs = Repairs(dependencies, now=self.now)
        self.control = RepairControl(self.repairs, approval_lifetime=timedelta(hours=1))

    def look_for_use(self, action: actions.Action, since: datetime, now: datetime) -> validation.CheckResult:
        used = [workload for workload in action.arguments.get("pods", "").split(",") if workload in self.used]
        state = validation.CheckState.FAILED if used else self.idle
        return validation.CheckResult("idle", state, f"{', '.join(used)} at work" if used else "nothing runs")

    def look_for_boot(self, _: fleet.Place, since: datetime, __: datetime) -> validation.CheckResult | None:
        self.boot_since = since
        return self.boot

    def restart(self) -> None:
        """As after kill -9: nothing but the journal's file is left."""
        self.journal.close()
        self.journal = Journal(self.folder / "journal.sqlite")
        self.open()

    def close(self) -> None:
        self.journal.close()

    def breaks(
        self, node: str, cause: str = "gpu_fell_off_bus", *, gpu: str = "GPU-1", workloads: tuple[str, ...] = ()
    ) -> incidents.Incident:
        """An incident that the journal has."""
        self.cluster.machines[node].is_sick = causes.lookup(cause).is_hardware
        incident = incidents.Incident(
            self.journal.next_incident_id(),
            fleet.Place("main", node=node, gpu=gpu),
            cause,
            alerts.Severity.CRITICAL,
            incidents.IncidentState.OPEN,
            self.now,
            cause,
            causes.lookup(cause).family,
            (),
            workloads,
        )
        self.journal.save_incident(incident, kind="opened", text=cause, at=self.now)
        return incident

    def ends(self, id: str) -> None:
        incident = self.journal.incident(id)
        assert incident is not None
        if incident.is_open:
            done = incidents.move(incident, incidents.IncidentState.RESOLVED, at=self.now)
            self.journal.save_incident(done, kind="resolved", text="over", at=self.now)

    def reopens(self, id: str) -> incidents.Incident:
        incident = self.journal.incident(id)
        assert incident is not None
        again = incidents.move(incident, incidents.IncidentState.OPEN, at=self.now)
        self.journal.save_incident(again, kind="reopened", text="again", at=self.now)
        return again

    def wants(self, incident: incidents.Incident, mode: Mode | None = None) -> RepairProposal | None:
        node = next(node for node in self.nodes if node.name == incident.place.node)
        draft = make_plan(incident, None, self.policy, pool=node.pool)
        mode_decision = ModeDecision(mode or self.mode, f"mode {mode or self.mode} by the test")
        return propose_repair(
            incident, draft.cause, draft.actions, policy=self.policy, pool=node.pool, mode_decision=mode_decision
        )

    def take(self, incident: incidents.Incident, mode: Mode | None = None) -> Repair | None:
        want = self.wants(incident, mode)
        return None if want is None else self.repairs.submit(want, self.now)

    def step(self, seconds: float = 1.0) -> None:
        """Let time pass, and everything due take one move."""
        self.now += timedelta(seconds=seconds)
        for id in self.repairs.sweep(self.now):
            self.repairs.advance(id, self.now)

    def settle(self, steps: int = 200, seconds: float = 1.0) -> None:
        for _ in range(steps):
            self.step(seconds)

    def state(self, id: str) -> str:
        repair = self.repairs.find(id)
        return "none" if repair is None else repair.state

    def story(self, id: str) -> list[str]:
        return [entry.text for entry in self.journal.timeline(id)]


def limits(**changes: object) -> guards.GuardLimits:
    return replace(FREE, **changes)  # type: ignore[arg-type]
