"""Incidents for the small hub."""

from __future__ import annotations

from datetime import timedelta

from tests.web.kept_services import Entry
from tests.web.small_hub import SmallHub
from watchkeeper.model import actions, alerts, diagnosis, fleet, incidents, trust

KERNEL_LINE = "NVRM: Xid (PCI:0000:5d:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
STEPS = (
    (actions.ActionKind.CORDON, "no new work on a broken node", "kubectl cordon {node}"),
    (actions.ActionKind.DRAIN, "the job has to move", "kubectl drain {node} --ignore-daemonsets --grace-period=30"),
    (actions.ActionKind.REBOOT, "a reset cannot reach a lost GPU", "ssh {node} systemctl reboot"),
    (actions.ActionKind.VALIDATE, "8 GPUs, no Xid for 10 min", "watchkeeper diag -r 2"),
    (actions.ActionKind.UNCORDON, "only if validation passed", "kubectl uncordon {node}"),
)


def lose_gpu(hub: SmallHub, *, id: str = "INC-1", node: str = "gpu-r01-02", index: int = 3) -> incidents.Incident:
    """A GPU falls off the bus: incident, diagnosis and plan, as the hub would have them."""
    uuid = next(
        fleet_gpu.gpu.uuid
        for fleet_gpu in hub.fleet.fleet_gpus
        if fleet_gpu.node == node and fleet_gpu.gpu.index == index
    )
    place, at = fleet.Place("main", node=node, gpu=uuid), hub.clock.now() - timedelta(minutes=4)
    member = incidents.Member(
        incidents.MemberKind.EVENT, f"e-{id}", place, "gpu_fell_off_bus", at, KERNEL_LINE, alerts.Severity.CRITICAL
    )
    incident = incidents.Incident(
        incidents.IncidentId(id),
        place,
        f"GPU {index} on {node} fell off the bus",
        alerts.Severity.CRITICAL,
        incidents.IncidentState.OPEN,
        at,
        "gpu_fell_off_bus",
        "gpu_lost",
        (member,),
        workloads=("research/llm-70b-worker-3",),
    )
    hub.journal.diagnoses[id] = diagnose(incident)
    hub.journal.plans[id] = propose(hub, incident)
    hub.readings.silent.add(uuid)
    return hub.journal.keep(incident, Entry(at, "hub", "incident.opened", {"text": "Xid 79"}))


def keep_waiting(hub: SmallHub, *, pod: str, id: str = "INC-4") -> incidents.Incident:
    """A pod that asks for more GPUs than a node has."""
    place, at = fleet.Place("main", domain=f"pod={pod}"), hub.clock.now() - timedelta(minutes=9)
    title, cause = f"Pod {pod} waits for free GPUs", "insufficient_gpu_capacity"
    member = incidents.Member(incidents.MemberKind.ALERT, f"a-{id}", place, cause, at, title, alerts.Severity.INFO)
    incident = incidents.Incident(
        incidents.IncidentId(id), place, title, alerts.Severity.INFO, incidents.IncidentState.OPEN, at, cause,
        "scheduling", (member,),
    )  # fmt: skip
    best = diagnosis.Finding(
        cause, 0.9, place, title, "No node has so many GPUs.", (), (diagnosis.DiagnosisStep("Ask for fewer GPUs"),)
    )
    hub.journal.diagnoses[id] = diagnosis.Diagnosis(incident.id, at, (best,), ())
    return hub.journal.keep(incident, Entry(at, "hub", "incident.opened", {"text": title}))


def lose_rack(hub: SmallHub, *, rack: str = "r01", id: str = "INC-9") -> incidents.Incident:
    """All nodes of a rack fall silent at once."""
    place, at = fleet.Place("main", domain=f"rack={rack}"), hub.clock.now() - timedelta(minutes=3)
    title = f"Rack {rack} is down"
    member = incidents.Member(
        incidents.MemberKind.DOMAIN, f"d-{id}", place, "node_down", at, title, alerts.Severity.CRITICAL
    )
    incident = incidents.Incident(
        incidents.IncidentId(id), place, title, alerts.Severity.CRITICAL, incidents.IncidentState.OPEN, at,
        "node_down", "node_down", (member,),
    )  # fmt: skip
    return hub.journal.keep(incident, Entry(at, "hub", "incident.opened", {"text": title}))


def diagnose(incident: incidents.Incident) -> diagnosis.Diagnosis:
    signals = tuple(
        diagnosis.Evidence("kernel", text, incident.opened_at + timedelta(milliseconds=ms), incident.place)
        for ms, text in ((0, KERNEL_LINE), (4, "pcieport 0000:5c:01.0: AER: Uncorrected (Fatal) error received"))
    )
    best = diagnosis.Finding(
        "gpu_fell_off_bus",
        0.97,
        incident.place,
        "PCIe link lost",
        "Xid 79 in the kernel log; its readings end 40 ms later; the other 7 GPUs of the node answer.",
        signals,
        (diagnosis.DiagnosisStep("Cordon and drain the node, then reboot it"),),
        (
            diagnosis.RuledOut("app_illegal_access", "no Xid 13, 31 or 43 on this node in 24 h"),
            diagnosis.RuledOut("thermal_throttle", "61 °C and 648 W before: 26 °C below slowdown"),
        ),
    )
    second = diagnosis.Finding(
        "power_brake", 0.08, incident.place, "Power brake", "No brake was signalled, but power fell to 0 W.", ()
    )
    return diagnosis.Diagnosis(
        incident.id, incident.opened_at, (best, second), ("kernel log", "power", "temperature", "peers")
    )


def propose(hub: SmallHub, incident: incidents.Incident) -> actions.Plan:
    receipts = tuple(
        actions.Receipt(
            actions.Action(actions.ActionId(f"{incident.id}-{at}"), kind, incident.place, incident.id, why),
            incident.opened_at,
            actions.Result.DESCRIBED,
            text.format(node=incident.place.node),
        )
        for at, (kind, why, text) in enumerate(STEPS, 1)
    )
    next_step = f"Cordon and drain {incident.place.node}, then reboot it"
    return actions.Plan(incident.id, incident.cause, trust.Mode.OBSERVE, hub.clock.now(), next_step, receipts)


def heat_up(hub: SmallHub, *, id: str = "INC-2", node: str = "gpu-r02-01") -> incidents.Incident:
    """The fans of a node stop: a warning about the whole node."""
    place, at = fleet.Place("main", node=node), hub.clock.now() - timedelta(minutes=25)
    member = incidents.Member(
        incidents.MemberKind.ALERT,
        '{alertname="GpuThermalThrottling"}',
        place,
        "cooling_failure",
        at,
        "8 of 8 GPUs above 87 °C",
        alerts.Severity.WARNING,
    )
    incident = incidents.Incident(
        incidents.IncidentId(id),
        place,
        f"Cooling of {node} has failed",
        alerts.Severity.WARNING,
        incidents.IncidentState.OPEN,
        at,
        "cooling_failure",
        "cooling",
        (member,),
    )
    why = "8 of 8 GPUs throttle thermally while their rack neighbours stay at 61 °C. Cooling, not load."
    finding = diagnosis.Finding("cooling_failure", 0.91, place, "Cooling failure", why, ())
    hub.journal.diagnoses[id] = diagnosis.Diagnosis(id, at, (finding,), ("temperature", "peers"))
    return hub.journal.keep(incident, Entry(at, "hub", "incident.opened", {"text": "GpuThermalThrottling"}))


def close_one(hub: SmallHub, *, id: str = "INC-3", node: str = "gpu-r01-01") -> None:
    at = hub.clock.now()
    incident = incidents.Incident(
        incidents.IncidentId(id),
        fleet.Place("main", node=node),
        f"Memory of GPU 5 on {node} had an uncorrectable error",
        alerts.Severity.CRITICAL,
        incidents.IncidentState.RESOLVED,
        at - timedelta(minutes=40),
        "ecc_uncorrectable",
        "gpu_memory",
        (),
        resolved_at=at - timedelta(minutes=12),
    )
    finding = diagnosis.Finding(
        "ecc_uncorrectable", 0.95, incident.place, "ECC", "The row was remapped after a reset; no error since.", ()
    )
    hub.journal.diagnoses[id] = diagnosis.Diagnosis(id, at, (finding,), ())
    hub.journal.keep(incident, Entry(at, "hub", "incident.resolved", {"why": "row remapped"}))
