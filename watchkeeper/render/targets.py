"""The render targets: name, module and one line for --help.

`cli.hub.render` loads one by name. A module is imported only when its target is rendered, and has a function `files`
of the type `tree.Target`.
"""

from __future__ import annotations

import importlib

from watchkeeper.render.tree import Target

TARGETS: dict[str, tuple[str, str]] = {
    "prometheus": ("watchkeeper.render.prometheus", "prometheus.yml and every rule that the hub evaluates"),
    "alertmanager": ("watchkeeper.render.alertmanager", "routes, receivers and inhibition from [notify] and the packs"),
    "grafana": ("watchkeeper.render.grafana", "dashboards and their provisioning"),
    "kubernetes": ("watchkeeper.render.kubernetes", "agent and hub as a kustomization"),
    "helm": ("watchkeeper.render.helm", "agent and hub as a Helm chart"),
    "keda": ("watchkeeper.render.keda", "ScaledObjects for inference"),
    "operator": ("watchkeeper.render.operator", "values for the GPU Operator and kube-prometheus-stack"),
    "systemd": ("watchkeeper.render.systemd", "units of agent and hub, and a timer for diagnostics"),
    "slurm": ("watchkeeper.render.slurm", "prolog, epilog, HealthCheckProgram, fragments of slurm.conf and gres.conf"),
    "compose": ("watchkeeper.render.compose", "Prometheus, Alertmanager, Grafana, agent and hub in containers"),
    "mig": ("watchkeeper.render.mig", "checked MIG layouts for mig-parted, and a unit that applies one at boot"),
}


def load(name: str) -> Target:
    """Import the target of this name; KeyError if there is none."""
    files: Target = importlib.import_module(TARGETS[name][0]).files
    return files
