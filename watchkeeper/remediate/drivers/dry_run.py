"""The driver of a hub that was given no cluster: it says what would be done, and refuses to do it."""

from __future__ import annotations

from watchkeeper.errors import ActionRefused
from watchkeeper.model.actions import Action, ActionKind
from watchkeeper.model.fleet import Place
from watchkeeper.remediate.driver import ActionOutcome, NodeObservation

WORDS = {
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
    ActionKind.INSPECT: "a person looks at {place}",
    ActionKind.NOTIFY_OWNER: "tell the owner of the workload on {place}",
    ActionKind.WARN_OWNER: "kubectl events of the idle pods on {place}   (Slurm: scontrol notify JOB)",
    ActionKind.RECLAIM: "kubectl scale --replicas=0 what is idle on {place}   (Slurm: scontrol requeuehold JOB)",
    ActionKind.HAND_OVER: "give {place} to the vendor, with `watchkeeper bundle` of {node}",
}


def describe_by_hand(action: Action) -> str:
    """The command a person would type, or what a person has to do."""
    place = action.place
    return WORDS[action.kind].format(
        node=place.node or place.domain or place.cluster,
        gpu=place.gpu or "",
        place=" ".join(part for part in (place.gpu, place.node or place.domain or place.cluster) if part),
        mark=action.mark,
        service=action.arguments.get("service", "the service"),
    )


class DryRunDriver:
    """Knows nothing about any node, and touches none."""

    name = "dry run"

    def observe(self, place: Place) -> NodeObservation:
        return NodeObservation(place, exists=True)

    def describe(self, action: Action) -> str:
        return describe_by_hand(action)

    def perform(self, action: Action) -> ActionOutcome:
        raise ActionRefused(
            f"{action.kind} was asked for, but this hub only describes",
            where=action.place.node,
            now="Nothing was touched",
            remedy="Configure a driver under [remediate] to let it act",
        )
