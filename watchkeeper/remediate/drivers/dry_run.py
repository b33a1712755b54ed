"""The driver of a hub without a cluster: it describes actions and refuses to perform them."""

from __future__ import annotations

from watchkeeper.model.actions import Action, ActionKind
from watchkeeper.model.fleet import Place
from watchkeeper.remediate.driver import ActionOutcome, NodeObservation
from watchkeeper.remediate.drivers.cluster_driver import build_refusal

MANUAL_COMMANDS = {
    ActionKind.CORDON: "kubectl cordon {node}   (Slurm: scontrol update NodeName={node} State=DRAIN Reason={mark})",
    ActionKind.DRAIN: "kubectl drain {node} --ignore-daemonsets --delete-emptydir-data"
    "   (Slurm: wait until {node} is DRAINED)",
    ActionKind.UNCORDON: "kubectl uncordon {node}   (Slurm: scontrol update NodeName={node} State=RESUME)",
    ActionKind.REBOOT: "on {node}: systemctl reboot   (Slurm: scontrol reboot {node})",
    ActionKind.RESET_GPU: "on {node}: nvidia-smi --gpu-reset -i {gpu}",
    ActionKind.APPLY_MIG: "on {node}: nvidia-mig-parted apply   (then compare the layout)",
    ActionKind.LOWER_POWER: "on {node}: nvidia-smi -i {gpu} --power-limit WATTS",
    ActionKind.RESTART_SERVICE: "on {node}: systemctl restart {service}",
    ActionKind.CHECK_FABRIC: "on {node}: watchkeeper fabric sweep",
    ActionKind.VALIDATE: "on {node}: dcgmi diag -r 2",
    ActionKind.RESTART_APP: "restart the workload that used {place}",
    ActionKind.INSPECT: "Manual: inspect {place}",
    ActionKind.NOTIFY_OWNER: "notify the owner of the workload on {place}",
    ActionKind.WARN_OWNER: "create an event on the idle pods on {place}   (Slurm: scontrol notify JOB)",
    ActionKind.RECLAIM: "kubectl scale --replicas=0 the controllers of the idle pods on {place}"
    "   (Slurm: scontrol requeuehold JOB)",
    ActionKind.HAND_OVER: "Manual: hand {place} over to the vendor, with `watchkeeper bundle` of {node}",
}


def describe_manual_command(action: Action) -> str:
    """Return the command that a person would run, or the manual step."""
    place = action.place
    return MANUAL_COMMANDS[action.kind].format(
        node=place.node or place.domain or place.cluster,
        gpu=place.gpu or "",
        place=" on ".join(part for part in (place.gpu, place.node or place.domain or place.cluster) if part),
        mark=action.mark,
        service=action.arguments.get("service", "the service"),
    )


class DryRunDriver:
    """Assumes that every node exists, and changes none."""

    name = "dry run"

    def observe(self, place: Place) -> NodeObservation:
        return NodeObservation(place, exists=True)

    def describe(self, action: Action) -> str:
        return describe_manual_command(action)

    def perform(self, action: Action) -> ActionOutcome:
        problem = f"this hub has no driver for {action.kind}; it only describes actions"
        raise build_refusal(problem, action.place.node, "Set remediate.driver")
