"""The steps that a machine answers itself, from files and command output as a node has them."""

from __future__ import annotations

from pathlib import Path

import pytest

from watchkeeper.catalogue import setup_steps
from watchkeeper.doctor.stack import steps
from watchkeeper.doctor.stack.facts import Stack
from watchkeeper.readers.node import kubernetes_node

SHOW_UNITS = " ".join(kubernetes_node.COMMANDS[0])
CONFIG = """version = 3
time="2026-11-19T10:00:00Z" level=warning msg="a warning between the lines"
disabled_plugins = []

[plugins]
  [plugins.'io.containerd.cri.v1.runtime']
    [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
      SystemdCgroup = true
"""
OUTPUTS = {
    SHOW_UNITS: "Id=containerd.service\nLoadState=loaded\nActiveState=active\nSubState=running\nNRestarts=0\n\n"
    "Id=crio.service\nLoadState=not-found\nActiveState=inactive\nSubState=dead\n\n"
    "Id=kubelet.service\nLoadState=loaded\nActiveState=active\nSubState=running\nNRestarts=0\n",
    "containerd config dump": CONFIG,
    "containerd --version": "containerd github.com/containerd/containerd/v2 v2.2.1 dea7da592f5d",
    "kubeadm version -o short": "v1.35.2",
    "kubelet --version": "Kubernetes v1.35.2",
    "iptables -S INPUT": "-P INPUT ACCEPT\n-A INPUT -j KUBE-FIREWALL\n",
    "kubectl version --client": "Client Version: v1.35.2\nKustomize Version: v5.7.1",
}
FILES = {
    "sys/fs/cgroup/cgroup.controllers": "cpu memory\n",
    "proc/swaps": "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n",
    "proc/filesystems": "nodev\tsysfs\nnodev\toverlay\n",
    "sys/module/br_netfilter/refcnt": "0\n",
    "etc/modules-load.d/k8s.conf": "# for Kubernetes\noverlay\nbr_netfilter\n",
    "proc/sys/net/ipv4/ip_forward": "1\n",
    "proc/sys/net/bridge/bridge-nf-call-iptables": "1\n",
    "proc/sys/net/bridge/bridge-nf-call-ip6tables": "1\n",
    "etc/kubernetes/kubelet.conf": "apiVersion: v1\n",
    "sys/bus/pci/devices/0000:3b:00.0/class": "0x030200\n",
    "sys/bus/pci/devices/0000:3b:00.0/vendor": "0x10de\n",
    "sys/module/nvidia/version": "595.91.07\n",
    "var/run/cdi/management.nvidia.com-gpu.yaml": "cdiVersion: 0.5.0\nkind: management.nvidia.com/gpu\n",
}
NFT = """table inet filter {
	chain input {
		type filter hook input priority filter; policy drop;
	}
}
"""
NODE_STEPS = [row.step for row in setup_steps.steps() if row.where == "node"]
UFW = """Status: active

To                         Action      From
--                         ------      ----
22/tcp                     ALLOW       Anywhere
10250/tcp                  ALLOW       10.0.0.0/24
Anywhere on cni0           ALLOW       Anywhere
22/tcp (v6)                ALLOW       Anywhere (v6)
"""
FIREWALLD = """public (default, active)
  target: default
  services: dhcpv6-client ssh
  ports: 10250/tcp 2379-2380/tcp
  rich rules:
"""


def checked(root: Path, files: dict[str, str] | None = None, **outputs: str) -> dict[str, steps.StackStep]:
    """The node's steps on a healthy node with these changes; an empty file is absent, so is an empty output."""
    for path, text in (FILES | (files or {})).items():
        if text:
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(text)
    changed = {key.replace("_", " "): text for key, text in outputs.items()}
    present = {command: text for command, text in (OUTPUTS | changed).items() if text}
    node = kubernetes_node.read(present, root, is_root=True)
    return {step.step: step for step in steps.check(Stack(node=node)) if step.where == "node"}


def test_a_node_that_is_set_up_passes_every_step_of_the_node(tmp_path: Path) -> None:
    found = checked(tmp_path)
    assert {step.step: step.now for step in found.values() if step.state != "passed"} == {}
    assert list(found) == NODE_STEPS
    assert found["container_runtime"].now == "containerd 2.2.1 is running"
    assert found["gpu_driver"].now == "driver 595.91.07, 1 GPUs on the PCI bus"
    assert found["container_toolkit"].now == "CDI: management.nvidia.com/gpu"


BROKEN = {
    "cgroups": ({"sys/fs/cgroup/cgroup.controllers": "", "sys/fs/cgroup/cpu/tasks": "1"}, "not cgroup v2"),
    "swap_off": ({"proc/swaps": "Filename Type Size Used Priority\n/dev/sda2 partition 8 0 -2\n"}, "/dev/sda2"),
    "kernel_modules": ({"proc/filesystems": "nodev\tsysfs\n"}, "not loaded: overlay"),
    "forwarding": ({"proc/sys/net/ipv4/ip_forward": "0\n"}, "net.ipv4.ip_forward = 0"),
    "kubelet": ({"etc/kubernetes/kubelet.conf": ""}, "has not joined"),
    "gpu_driver": ({"sys/module/nvidia/version": ""}, "1 GPUs on the PCI bus, and no NVIDIA driver"),
    "container_toolkit": ({"var/run/cdi/management.nvidia.com-gpu.yaml": "kind: vendor.example/nic\n"}, "no CDI"),
}


@pytest.mark.parametrize("step", BROKEN)
def test_a_node_with_one_fault_fails_that_step_with_what_is_true_and_what_to_do(tmp_path: Path, step: str) -> None:
    files, now = BROKEN[step]
    found = checked(tmp_path, files)
    assert [name for name, item in found.items() if item.state == "failed"] == [step]
    assert now in found[step].now
    assert found[step].action
    following = steps.next_step(list(found.values()))
    assert following is not None
    assert following.step == step


@pytest.mark.parametrize(
    ("config", "now"),
    [
        (CONFIG.replace("= true", "= false"), "SystemdCgroup is not true"),
        (CONFIG.replace("[]", '["cri"]'), "disabled_plugins has cri"),
        (CONFIG.replace("version = 3", "version = 2").replace("cri.v1.runtime", "grpc.v1.cri"), "SystemdCgroup = true"),
        ("permission denied", "printed no configuration"),
    ],
)
def test_the_effective_configuration_of_containerd_is_judged(tmp_path: Path, config: str, now: str) -> None:
    assert now in checked(tmp_path, containerd_config_dump=config)["systemd_cgroups"].now


def test_swap_that_the_kubelet_allows_passes(tmp_path: Path) -> None:
    files = {"proc/swaps": "Filename Type\n/swap.img file\n", "var/lib/kubelet/config.yaml": "failSwapOn: false\n"}
    assert checked(tmp_path, files)["swap_off"].state == "passed"


def test_a_machine_that_cannot_be_read_is_never_passed(tmp_path: Path) -> None:
    node = kubernetes_node.read({}, tmp_path / "empty", is_root=False)
    states = {step.step: step.state for step in steps.check(Stack(node=node)) if step.was_read}
    assert "passed" not in states.values()
    assert {states[step] for step in ("swap_off", "cgroups", "forwarding", "firewall", "gpu_driver")} == {"unknown"}


def test_a_user_without_root_cannot_say_that_there_is_no_firewall(tmp_path: Path) -> None:
    outputs = {"ufw status": "Status: inactive\n"}
    read = [kubernetes_node.read(outputs, tmp_path, is_root=is_root).firewalls for is_root in (True, False)]
    assert read == [(), None]


CONTROL_PLANE = {"etc/kubernetes/manifests/kube-apiserver.yaml": "kind: Pod\n"}
FLANNEL = {"sys/class/net/flannel.1/mtu": "1450\n"}
# Port 179 (0x00B3) listens; a connection (01) to port 5473 (0x1561) does not count.
BIRD = {
    "proc/net/tcp": "  sl  local_address rem_address   st\n   0: 00000000:00B3 00000000:0000 0A 0\n"
    "   1: 0100007F:1561 0100007F:1234 01 0\n"
}


FIREWALLS: list[tuple[dict[str, str], dict[str, str], str, str]] = [
    ({}, {"ufw_status": "Status: inactive\n"}, "passed", "no firewall is active"),
    ({}, {"ufw_status": UFW}, "passed", "10250/tcp (Kubernetes kubelet API), to 10.0.0.0/24 only"),
    (CONTROL_PLANE, {"ufw_status": UFW}, "failed", "6443/tcp (Kubernetes API server), 2379-2380/tcp"),
    (FLANNEL, {"ufw_status": UFW}, "failed", "does not open 8472/udp (Flannel VXLAN)"),
    (BIRD, {"ufw_status": UFW}, "failed", "does not open 179/tcp (Calico BGP)"),
    (CONTROL_PLANE | FLANNEL, {"ufw_status": UFW + "Anywhere   ALLOW   10.0.0.0/24\n"}, "passed", "8472/udp"),
    ({}, {"ufw_status": "ERROR: You need to be root to run this script"}, "unknown", "ufw"),
    ({}, {"firewall-cmd_--list-all": FIREWALLD}, "passed", "firewalld opens 10250/tcp"),
    (CONTROL_PLANE, {"firewall-cmd_--list-all": FIREWALLD}, "failed", "does not open 6443/tcp (Kubernetes API"),
    (
        CONTROL_PLANE,
        {"firewall-cmd_--list-all": FIREWALLD.replace("ssh", "kube-apiserver")},
        "unknown",
        "perhaps closed: 6443/tcp",
    ),
    ({}, {"firewall-cmd_--list-all": "FirewallD is not running\n"}, "passed", "no firewall"),
    ({}, {"iptables_-S_INPUT": "-P INPUT ACCEPT\n-A INPUT -j REJECT --reject-with x\n"}, "unknown", "iptables"),
    ({}, {"iptables_-S_INPUT": "-P INPUT ACCEPT\n-A INPUT -s 192.0.2.1/32 -j DROP\n"}, "passed", "no firewall"),
    (
        {},
        {
            "nft_list_chains": NFT,
        },
        "unknown",
        "nftables",
    ),
]


@pytest.mark.parametrize(("files", "outputs", "state", "now"), FIREWALLS)
def test_a_firewall_is_compared_with_the_ports_that_this_node_needs(
    tmp_path: Path, files: dict[str, str], outputs: dict[str, str], state: str, now: str
) -> None:
    step = checked(tmp_path, files, **outputs)["firewall"]
    assert (step.state, now in step.now) == (state, True), step.now
