"""Read what a machine has of a Kubernetes node with GPUs: swap, modules, container runtime, kubelet, driver, CDI.

`doctor.stack.node_steps` judges it. A file that is missing or cannot be read is None or empty; `outputs` has the output
of those of `COMMANDS` that are installed.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from watchkeeper.readers.node import firewall, host, pci_sysfs, systemd_units

UNITS = ("containerd.service", "crio.service", "kubelet.service")
CONFIG_DUMP = ("containerd", "config", "dump")
PROGRAMS = ("containerd", "crio", "kubeadm", "kubelet", "kubectl")
COMMANDS = (
    tuple(systemd_units.show_command(UNITS)), CONFIG_DUMP, ("containerd", "--version"), ("crio", "--version"),
    ("kubeadm", "version", "-o", "short"), ("kubelet", "--version"), ("kubectl", "version", "--client"),
    *firewall.COMMANDS,
)  # fmt: skip
MODULES = ("overlay", "br_netfilter")
SYSCTLS = ("net.ipv4.ip_forward", "net.bridge.bridge-nf-call-iptables", "net.bridge.bridge-nf-call-ip6tables")
# Log lines of containerd between the lines of its configuration.
LOG_LINE = re.compile(r"^(?:time=|[A-Z]{4}\[).*\n?", re.MULTILINE)
VERSION = re.compile(r"\bv?(\d+\.\d+(?:\.\d+)?)\b")
CDI_KIND = re.compile(r"^\s*\"?kind\"?: *\"?([\w.-]+/[\w.-]+)", re.MULTILINE)
LISTEN = "0A"


@dataclass(frozen=True, slots=True)
class KubernetesNode:
    """The state of one machine; None is unknown."""

    has_cgroup_v2: bool | None = None
    swaps: tuple[str, ...] | None = None
    # Text of the kubelet's configuration; None if there is none, or it cannot be read.
    kubelet_config: str | None = None
    modules: frozenset[str] = frozenset()
    # Modules that /etc/modules-load.d loads at each boot.
    modules_at_boot: frozenset[str] = frozenset()
    sysctls: Mapping[str, int | None] = field(default_factory=dict)
    # None if systemd did not answer.
    units: Mapping[str, systemd_units.Unit] | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    containerd_config: Mapping[str, Any] | None = None
    has_joined: bool = False
    is_control_plane: bool = False
    interfaces: frozenset[str] = frozenset()
    listening: frozenset[tuple[str, int]] = frozenset()
    firewalls: tuple[firewall.Firewall, ...] | None = None
    # On the PCI bus, with or without a driver.
    gpus: int | None = None
    driver: str | None = None
    cdi_kinds: frozenset[str] = frozenset()


def read(outputs: Mapping[str, str], root: Path = Path("/"), *, is_root: bool) -> KubernetesNode:
    proc, sysfs, kubernetes = root / "proc", root / "sys", root / "etc/kubernetes"
    swaps = host.read_text(proc / "swaps")
    shown_units = outputs.get(" ".join(COMMANDS[0]), "")
    return KubernetesNode(
        has_cgroup_v2=(sysfs / "fs/cgroup/cgroup.controllers").exists() if (sysfs / "fs/cgroup").is_dir() else None,
        swaps=None if swaps is None else tuple(line.split()[0] for line in swaps.splitlines()[1:] if line.strip()),
        kubelet_config=host.read_text(root / "var/lib/kubelet/config.yaml"),
        modules=frozenset(name for name in MODULES if _has_module(name, proc, sysfs)),
        modules_at_boot=_read_modules_at_boot(root),
        sysctls={name: host.read_number(proc / "sys" / name.replace(".", "/", 2)) for name in SYSCTLS},
        units={unit.name: unit for unit in systemd_units.read(shown_units)} if "LoadState=" in shown_units else None,
        versions=_read_versions(outputs),
        containerd_config=_read_config(outputs.get(" ".join(CONFIG_DUMP), "")),
        has_joined=(kubernetes / "kubelet.conf").exists(),
        is_control_plane=(kubernetes / "manifests/kube-apiserver.yaml").exists(),
        interfaces=frozenset(path.name for path in (sysfs / "class/net").glob("*")),
        listening=frozenset(_read_listening(proc)),
        firewalls=firewall.read(outputs, is_root=is_root),
        gpus=_count_gpus(sysfs),
        driver=host.read_driver_version(proc, sysfs),
        cdi_kinds=_read_cdi_kinds(root),
    )


def _count_gpus(sysfs: Path) -> int | None:
    if not (sysfs / "bus/pci/devices").is_dir():
        return None
    return sum(device.kind is pci_sysfs.DeviceKind.GPU for device in pci_sysfs.read(sysfs))


def _has_module(name: str, proc: Path, sysfs: Path) -> bool:
    """Whether a module is loaded or built in: overlay registers a filesystem, br_netfilter creates sysctls."""
    if name == "overlay" and re.search(r"\boverlay$", host.read_text(proc / "filesystems") or "", re.MULTILINE):
        return True
    return (sysfs / "module" / name).exists() or (name == "br_netfilter" and (proc / "sys/net/bridge").is_dir())


def _read_modules_at_boot(root: Path) -> frozenset[str]:
    files = [root / "etc/modules", *(root / "etc/modules-load.d").glob("*.conf")]
    lines = [line.partition("#")[0] for path in files for line in (host.read_text(path) or "").splitlines()]
    return frozenset(word for line in lines for word in line.split())


def _read_versions(outputs: Mapping[str, str]) -> dict[str, str]:
    versions = {}
    for command, text in outputs.items():
        program, match = command.split()[0], VERSION.search(text)
        if program in PROGRAMS and command != " ".join(CONFIG_DUMP):
            versions[program] = match[1] if match else ""
    return versions


def _read_config(text: str) -> Mapping[str, Any] | None:
    try:
        return tomllib.loads(LOG_LINE.sub("", text)) or None
    except tomllib.TOMLDecodeError:
        return None


def _read_listening(proc: Path) -> list[tuple[str, int]]:
    """Ports with a socket that accepts connections (TCP) or is bound (UDP)."""
    ports = []
    for name in ("tcp", "tcp6", "udp", "udp6"):
        for line in (host.read_text(proc / "net" / name) or "").splitlines()[1:]:
            parts = line.split()
            if len(parts) > 3 and (name.startswith("udp") or parts[3] == LISTEN):
                ports.append((name[:3], int(parts[1].rpartition(":")[2], 16)))
    return ports


def _read_cdi_kinds(root: Path) -> frozenset[str]:
    """The kinds of devices in the CDI specifications of a node, such as nvidia.com/gpu."""
    files = [path for folder in ("etc/cdi", "var/run/cdi", "run/cdi") for path in (root / folder).glob("*.*")]
    return frozenset(kind for path in files for kind in CDI_KIND.findall(host.read_text(path) or ""))
