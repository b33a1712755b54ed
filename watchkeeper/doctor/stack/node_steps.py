"""Check the steps that a machine itself can answer: kernel, container runtime, kubelet, firewall, driver, CDI."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from watchkeeper.catalogue import setup_steps
from watchkeeper.doctor.stack.facts import StepResult, failed, passed, unknown
from watchkeeper.readers import json_facts
from watchkeeper.readers.node.firewall import Firewall
from watchkeeper.readers.node.kubernetes_node import MODULES, KubernetesNode

# The plugin with the settings of the CRI: containerd 2, containerd 1.
CRI_PLUGINS = ("io.containerd.cri.v1.runtime", "io.containerd.grpc.v1.cri")
DISABLED_CRI = frozenset({"cri", *CRI_PLUGINS})
ALLOWS_SWAP = re.compile(r"^failSwapOn: *false", re.MULTILINE)
BRIDGE = "net.bridge."


def cgroups(node: KubernetesNode) -> StepResult:
    if node.has_cgroup_v2 is None:
        return unknown("/sys/fs/cgroup cannot be read")
    return passed("cgroup v2 is mounted") if node.has_cgroup_v2 else failed("/sys/fs/cgroup is not cgroup v2")


def swap_off(node: KubernetesNode) -> StepResult:
    if node.swaps is None:
        return unknown("/proc/swaps cannot be read")
    if not node.swaps:
        return passed("no swap is in use")
    now = f"swap is in use: {', '.join(node.swaps)}"
    if node.kubelet_config is not None and ALLOWS_SWAP.search(node.kubelet_config):
        return passed(f"{now}; the kubelet allows it (failSwapOn: false)")
    return failed(now)


def kernel_modules(node: KubernetesNode) -> StepResult:
    missing = [name for name in MODULES if name not in node.modules]
    # br_netfilter is for CNIs that connect pods to a Linux bridge.
    if missing == ["br_netfilter"] and _uses_cilium(node):
        return passed("overlay is loaded; Cilium does not need br_netfilter")
    if missing:
        return failed(f"not loaded: {', '.join(missing)}")
    unlisted = [name for name in MODULES if name not in node.modules_at_boot]
    note = f"; not in /etc/modules-load.d, so another program has to load them: {', '.join(unlisted)}"
    return passed("both are loaded" + (note if unlisted else ""))


def forwarding(node: KubernetesNode) -> StepResult:
    values = {name: value for name, value in node.sysctls.items() if not name.startswith(BRIDGE) or value is not None}
    wrong = [f"{name} = {value}" for name, value in values.items() if value == 0]
    if _uses_cilium(node):
        wrong = [line for line in wrong if not line.startswith(BRIDGE)]
    if wrong:
        return failed(", ".join(wrong))
    if not values or None in values.values():
        return unknown("/proc/sys/net cannot be read")
    return passed(", ".join(f"{name} = {value}" for name, value in values.items()))


def container_runtime(node: KubernetesNode) -> StepResult:
    if not {"containerd", "crio"}.intersection(node.versions):
        return failed("neither containerd nor CRI-O is installed")
    if node.units is None:
        return unknown("systemd does not answer")
    units = [node.units[f"{name}.service"] for name in ("containerd", "crio") if f"{name}.service" in node.units]
    if not units:
        return failed("neither containerd nor CRI-O is a systemd unit")
    running = [unit.name.removesuffix(".service") for unit in units if unit.is_running]
    if not running:
        return failed(", ".join(f"{unit.name} is {unit.active} ({unit.sub})" for unit in units))
    version = node.versions.get(running[0], "")
    old = (
        "; Kubernetes 1.35 is the last release that supports containerd 1.x"
        if f"{running[0]} {version}".startswith("containerd 1.")
        else ""
    )
    return passed(f"{running[0]} {version}".strip() + " is running" + old)


def systemd_cgroups(node: KubernetesNode) -> StepResult:
    config = node.containerd_config
    if "containerd" not in node.versions:
        has_crio = "crio" in node.versions
        return unknown("CRI-O: systemd is its default") if has_crio else failed("containerd is not installed")
    if config is None:
        return unknown("`containerd config dump` printed no configuration")
    disabled = DISABLED_CRI.intersection(map(str, json_facts.items(config, "disabled_plugins")))
    if disabled:
        return failed(f"the CRI plugin is disabled: disabled_plugins has {', '.join(sorted(disabled))}")
    if json_facts.mapping(_runtimes(config).get("runc"), "options").get("SystemdCgroup") is True:
        return passed("SystemdCgroup = true")
    return failed("SystemdCgroup is not true for the runtime runc")


def kubernetes_packages(node: KubernetesNode) -> StepResult:
    programs = ("kubeadm", "kubelet", "kubectl")
    missing = [name for name in programs if name not in node.versions]
    # A worker needs no kubectl, and no kubeadm once it has joined.
    if "kubelet" in missing or (missing and not node.has_joined):
        return failed(f"not installed: {', '.join(missing)}")
    return passed(", ".join(f"{name} {node.versions[name]}".strip() for name in programs if name in node.versions))


def firewall(node: KubernetesNode) -> StepResult:
    """Judge the firewalls on the node only; one between the nodes is not visible from here."""
    if node.firewalls is None:
        return unknown("no firewall program answered: run as root")
    if not node.firewalls:
        return passed("no firewall is active on this node; one between the nodes is not visible from here")
    ports = [row for row in setup_steps.ports() if _needs_port(node, row)]
    results = [_judge_firewall(item, ports) for item in node.firewalls]
    return next((result for result in results if not result.is_passed), results[0])


def kubelet(node: KubernetesNode) -> StepResult:
    unit = None if node.units is None else node.units.get("kubelet.service")
    if not node.has_joined:
        return failed("the node has not joined a cluster: there is no /etc/kubernetes/kubelet.conf")
    if node.units is None:
        return unknown("systemd does not answer")
    if unit is None or not unit.is_running:
        return failed("kubelet.service is " + ("not installed" if unit is None else f"{unit.active} ({unit.sub})"))
    return passed("the kubelet is running" + (" on a control plane node" if node.is_control_plane else ""))


def gpu_driver(node: KubernetesNode) -> StepResult:
    if not node.gpus:
        return _judge_no_gpu(node)
    if node.driver is None:
        return failed(f"{node.gpus} GPUs on the PCI bus, and no NVIDIA driver is loaded")
    return passed(f"driver {node.driver}, {node.gpus} GPUs on the PCI bus")


def container_toolkit(node: KubernetesNode) -> StepResult:
    if not node.gpus:
        return _judge_no_gpu(node)
    kinds = sorted(kind for kind in node.cdi_kinds if "nvidia.com/" in kind)
    runtimes = sorted(name for name in _runtimes(node.containerd_config or {}) if name.startswith("nvidia"))
    if not kinds and not runtimes:
        no_config = "" if node.containerd_config is not None else "; containerd's configuration could not be read"
        return failed(f"no CDI specification for nvidia.com/gpu, and no runtime nvidia in containerd{no_config}")
    ways = [
        *([f"CDI: {', '.join(kinds)}"] if kinds else []),
        *([f"runtimes: {', '.join(runtimes)}"] if runtimes else []),
    ]
    return passed("; ".join(ways))


CHECKS = (
    cgroups, swap_off, kernel_modules, forwarding, container_runtime, systemd_cgroups, kubernetes_packages, firewall,
    kubelet, gpu_driver, container_toolkit,
)  # fmt: skip


def _judge_no_gpu(node: KubernetesNode) -> StepResult:
    if node.gpus is None:
        return unknown("/sys/bus/pci cannot be read")
    return passed("this node has no NVIDIA GPU on the PCI bus")


def _uses_cilium(node: KubernetesNode) -> bool:
    return any(name.startswith("cilium") for name in node.interfaces)


def _runtimes(config: Mapping[str, Any]) -> Mapping[str, Any]:
    plugins = json_facts.mapping(config, "plugins")
    name = next((name for name in CRI_PLUGINS if name in plugins), "")
    return json_facts.mapping(json_facts.mapping(json_facts.mapping(plugins, name), "containerd"), "runtimes")


def _needs_port(node: KubernetesNode, row: setup_steps.PortRow) -> bool:
    match row.when:
        case "node":
            return True
        case "control-plane":
            return node.is_control_plane
        case "listening":
            return (row.protocol, row.first) in node.listening
        case interface:
            return interface in node.interfaces


def _judge_firewall(item: Firewall, ports: list[setup_steps.PortRow]) -> StepResult:
    if item.open_ports is None:
        return unknown(f"{item.name} is active, and its rules cannot be read: run as root, or read them")
    rules = {row: [rule for rule in item.open_ports if rule.covers(row.protocol, row.first, row.last)] for row in ports}
    missing = ", ".join(str(row) for row, covering in rules.items() if not covering)
    if missing and item.has_other_rules:
        return unknown(f"{item.name} has services or rich rules that are not read; perhaps closed: {missing}")
    if missing:
        return failed(f"{item.name} does not open {missing}")
    sources = sorted({rule.source for covering in rules.values() for rule in covering[:1] if rule.source})
    limit = f", to {', '.join(sources)} only: every node must be in it" if sources else ""
    return passed(f"{item.name} opens {', '.join(map(str, ports))}{limit}")
