"""Faults of a cluster that is set up: ports that are taken, pods without network, images without a GPU request."""

from __future__ import annotations

import pytest

from tests.doctor.asking import ask, causes

PORTS = [
    ("9100", 'level=ERROR source=node_exporter.go:250 msg="listen tcp :9100: bind: address already in use"'),
    ("9100", 'caller=node_exporter.go:223 level=error err="listen tcp 0.0.0.0:9100: bind: address already in use"'),
    ("9400", 'level=fatal msg="Failed to Listen: `listen tcp :9400: bind: address already in use`"'),
    ("9400", '{"level":"ERROR","msg":"Failed to Listen.","error":"listen tcp :9400: bind: address already in use"}'),
    ("9400", "docker: endpoint dcgm-exporter (0a1b): Bind for 0.0.0.0:9400 failed: port is already allocated."),
    ("9100", "failed to bind host port for 0.0.0.0:9100:172.17.0.2:9100/tcp: address already in use"),
    ("9400", "daemon: Error starting userland proxy: listen tcp4 0.0.0.0:9400: bind: address already in use"),
    ("8000", "ERROR: [Errno 98] error while attempting to bind on address ('0.0.0.0', 8000): address already in use"),
    ("9400", "2026/08/10 10:00:00 [emerg] 41#41: bind() to 0.0.0.0:9400 failed (98: Address already in use)"),
    ("3000", "Error: listen EADDRINUSE: address already in use :::3000"),
    ("8265", "RuntimeError: Port 8265 is already in use."),
]  # fmt: skip


@pytest.mark.parametrize(("port", "text"), PORTS)
def test_a_port_that_another_program_has_is_named_and_is_no_fault_of_nccl(port: str, text: str) -> None:
    finding = ask(text).findings[0]
    assert (finding.cause, finding.where["port"]) == ("port_in_use", int(port))
    assert finding.title.endswith(f"port {port}")
    assert any(f":{port}'" in (step.command or "") for step in finding.actions)
    assert "nccl_bootstrap_firewall" not in causes(ask(text))


@pytest.mark.parametrize(
    "text",
    [
        "[c10d] The server socket has failed to listen on any local address. (errno: 98 - Address already in use).",
        "[c10d] The server socket cannot be initialized on [::]:29400 (errno: 98 - Address already in use).",
        "DistNetworkError: The server socket has failed to listen. port: 29500, name: EADDRINUSE",
        "    store = TCPStore(host, port, world_size, True)\nRuntimeError: Address already in use",
        "RuntimeError: [/gloo/gloo/transport/tcp/listener.cc:50] bind: Address already in use",
        "gpu01:4711:4790 [0] misc/socket.cc:320 NCCL WARN socketListen: bind failed : Address already in use",
    ],
)  # fmt: skip
def test_the_rendezvous_port_of_a_job_is_still_told_apart(text: str) -> None:
    assert causes(ask(text))[:1] == ["nccl_bootstrap_firewall"]


def test_a_program_that_takes_the_next_port_has_no_fault() -> None:
    assert not ask("[I 10:00:00.101 NotebookApp] The port 8888 is already in use, trying another port.").findings


COREDNS = "kube-system   coredns-5d78c9869d-8xk2p   {ready}/1   {status}   0   {age}"
NO_POD_NETWORK = [
    COREDNS.format(ready=0, status="Running", age="12m"),
    COREDNS.format(ready=0, status="ContainerCreating", age="12m"),
    "NAME      READY   UP-TO-DATE   AVAILABLE   AGE\ncoredns   0/2     2            0           12m",
    "kube-system   rke2-coredns-rke2-coredns-84b9cb946c-z6x8k   0/1   Running   3 (12s ago)   12m",
    "[WARNING] plugin/kubernetes: starting server with unsynced Kubernetes API",
    (
        "Name:        coredns-5d78c9869d-8xk2p\nNamespace:   kube-system\nNode:        cp1/10.0.0.1\nEvents:\n"
        "  Warning  Unhealthy  2m (x81 over 12m)  Readiness probe failed: HTTP probe failed with statuscode: 503"
    ),
    'setup: unable to start manager: Get "https://10.96.0.1:443/api?timeout=32s": dial tcp 10.96.0.1:443: i/o timeout',
    'error getting node: Get "https://10.43.0.1:443/api/v1/nodes/g": dial tcp 10.43.0.1:443: connect: no route to host',
    (
        "$ kubectl -n gpu-operator logs gpu-operator-6b7d9c-x2x9p\n"
        'failed to get server groups: Get "https://192.168.1.10:6443/api": dial tcp 192.168.1.10:6443: i/o timeout'
    ),
    "dial tcp: lookup kubernetes.default.svc on 10.96.0.10:53: read udp 10.244.1.7:41822->10.96.0.10:53: i/o timeout",
    (
        "Ready  False  KubeletNotReady  container runtime network not ready: NetworkReady=false "
        "reason:NetworkPluginNotReady message:Network plugin returns error: cni plugin not initialized"
    ),
]


@pytest.mark.parametrize("text", NO_POD_NETWORK)
def test_pods_that_reach_neither_the_api_server_nor_dns_have_no_network(text: str) -> None:
    assert causes(ask(text))[:1] == ["pod_network_broken"]


@pytest.mark.parametrize(
    "text",
    [
        COREDNS.format(ready=1, status="Running", age="12m"),
        COREDNS.format(ready=0, status="Running", age="12s"),
        "kube-system   coredns-autoscaler-84b9cb946c-z6x8k   0/1   Completed   0   12m",
    ],
)
def test_coredns_that_is_ready_or_has_just_started_is_no_fault(text: str) -> None:
    assert not ask(text).findings


def test_an_api_server_that_a_node_does_not_reach_is_not_the_pod_network() -> None:
    text = 'kubelet: Post "https://192.168.1.10:6443/api/v1/nodes": dial tcp 192.168.1.10:6443: i/o timeout'
    assert causes(ask(text))[:1] == ["scheduler_unreachable"]
    assert causes(ask("Unable to connect to the server: dial tcp 203.0.113.10:6443: i/o timeout")) == [
        "scheduler_unreachable"
    ]


@pytest.mark.parametrize(
    "text",
    [
        (
            "Name:     train-0\nNamespace: team-a\nStatus:   Failed\nReason:   TopologyAffinityError\n"
            "Message:  Pod was rejected: Resources cannot be allocated with Topology locality"
        ),
        "NAME      READY   STATUS                  RESTARTS   AGE\ntrain-0   0/1     TopologyAffinityError   0   113s",
        '"Pod rejected" pod="team-a/train-0" reason="TopologyAffinityError" message="Resources cannot be allocated"',
        "0/5 nodes are available: 5 cannot align container.",
    ],
)
def test_gpus_that_are_free_on_several_numa_nodes_are_fragmented(text: str) -> None:
    assert causes(ask(text)) == ["gpu_fragmentation"]


def test_health_that_dcgm_was_not_asked_to_watch_is_unknown_with_the_command_that_starts_it() -> None:
    answer = ask("$ dcgmi health -g 0 -c\nError: Health watches not enabled. Please enable watches.\n")
    assert causes(answer) == ["unknown"]
    assert "dcgmi health -g 0 -s a" in [step.command for step in answer.findings[0].actions]
    assert answer.verdict == 3
