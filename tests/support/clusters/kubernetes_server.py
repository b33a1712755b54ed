"""A real Kubernetes cluster on this machine: etcd, API server, controllers, scheduler and hollow nodes with GPUs.

`scripts/kubernetes` builds the servers; `require` gives their folder, or skips the test by name with the way to get
them. `running` starts everything on loopback and ends it with the block. Hollow nodes (kubemark) are kubelets without
containers: pods really start and end on them. They listen on all addresses, so they live in a network of their own,
from which one relay leads to the API server.
"""

from __future__ import annotations

import contextlib
import csv
import ctypes
import fcntl
import json
import os
import socket
import ssl
import struct
import subprocess
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest
import yaml

from tests import servers
from tests.support.waiting import PROGRAM_SECONDS, until
from watchkeeper.net import access
from watchkeeper.readers.clusters.kubeconfig import ApiServer

TOKEN = "tests-only"
# Nodes become ready with their second status, ten seconds after their first; the rest is for a busy machine.
READY_SECONDS = 90.0
CLONE_NEWNET = 0x40000000
SIOCSIFFLAGS, IFF_UP_RUNNING = 0x8914, 0x41
PROGRAMS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubemark")
Raw = dict[str, Any]


def folder() -> Path:
    """Where scripts/kubernetes puts what it builds."""
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(cache) / "watchkeeper" / "kubernetes" / "bin"


def require() -> Path:
    """The folder of the servers; without it the test is skipped, or failed where servers are required."""
    servers.require("etcd")
    if os.getuid() != 0:
        return _missing("hollow nodes need a network of their own, and that needs root")
    # Root of a container may lack the right (CAP_SYS_ADMIN).
    if subprocess.run(["unshare", "--net", "true"], capture_output=True, check=False).returncode != 0:
        return _missing("hollow nodes need a network of their own, and `unshare --net` is not allowed here")
    if not all((folder() / program).exists() for program in PROGRAMS):
        return _missing(
            "Kubernetes' servers are not built. `sudo scripts/kubernetes` builds them; so does `make servers` as root"
        )
    return folder()


def _missing(why: str) -> Path:
    if os.environ.get("REQUIRE_SERVERS") == "1":
        pytest.fail(f"{why} (REQUIRE_SERVERS=1)", pytrace=False)
    pytest.skip(why)


@dataclass(slots=True)
class Cluster:
    """A running cluster, and the few requests that tests make of it."""

    folder: Path
    port: int
    etcd_port: int
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    @property
    def ca_file(self) -> Path:
        """The API server signs its own certificate."""
        return self.folder / "certs" / "apiserver.crt"

    @property
    def kubeconfig(self) -> Path:
        return self.folder / "kubeconfig"

    def reached(self) -> ApiServer:
        let_in = access.Access(credentials=TOKEN, ca_file=str(self.ca_file))
        return ApiServer(self.url, let_in, "test")

    def ask(self, path: str, *, method: str = "GET", body: Raw | None = None, token: str = TOKEN) -> Raw:
        kind = "application/strategic-merge-patch+json" if method == "PATCH" else "application/json"
        headers = {"Authorization": f"Bearer {token}", "Content-Type": kind}
        content = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, content, headers, method=method)
        secure = ssl.create_default_context(cafile=str(self.ca_file))
        with urllib.request.urlopen(request, timeout=60, context=secure) as answer:
            return dict(json.load(answer)) if answer.status < 300 else {}

    def create(self, path: str, raw: Raw) -> Raw:
        return self.ask(path, method="POST", body=raw)

    def create_pod(self, name: str, *, gpus: int, namespace: str = "default", **spec: Any) -> None:
        container = {"name": "main", "image": "none", "resources": {"limits": {"nvidia.com/gpu": str(gpus)}}}
        whole = {"containers": [container], "terminationGracePeriodSeconds": 0, **spec}
        raw = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": whole}
        self.create(f"/api/v1/namespaces/{namespace}/pods", raw)

    def delete_pod(self, name: str, namespace: str = "default") -> None:
        self.ask(f"/api/v1/namespaces/{namespace}/pods/{name}?gracePeriodSeconds=0", method="DELETE")

    def await_quota(self, namespace: str) -> None:
        """Return when the API server enforces a quota of one GPU. Until a controller has counted for it every pod is
        refused as "status unknown for quota", and a job that meets this tries again only after a growing pause.
        """
        log = self.folder / "kube-controller-manager.log"
        wait_until(lambda: self._refuses_two_gpus(namespace), "the quota", log)

    def _refuses_two_gpus(self, namespace: str) -> bool:
        try:
            self.create_pod("greedy", gpus=2, namespace=namespace)
        except urllib.error.HTTPError as error:
            return b"exceeded quota" in error.read()
        self.delete_pod("greedy", namespace)
        return False

    def cordon(self, name: str, *, cordoned: bool = True) -> None:
        self.ask(f"/api/v1/nodes/{name}", method="PATCH", body={"spec": {"unschedulable": cordoned}})

    def offer(self, name: str, gpus: int) -> None:
        """GPUs that a device plugin would have told the kubelet of; kubemark of this age has no flag for them."""
        counts = {"nvidia.com/gpu": str(gpus)}
        status = {"capacity": counts, "allocatable": counts}
        self.ask(f"/api/v1/nodes/{name}/status", method="PATCH", body={"status": status})

    def start_api_server(self) -> None:
        self._start("kube-apiserver", *_api_server_flags(self))
        wait_until(self._is_ready, "the API server", self.folder / "kube-apiserver.log")

    def kill_api_server(self) -> None:
        """SIGTERM would take ten seconds."""
        self.processes["kube-apiserver"].kill()
        self.processes.pop("kube-apiserver").wait()

    def _is_ready(self) -> bool:
        try:
            self.ask("/api/v1/namespaces/default")
        except (OSError, ValueError):
            return False
        return True

    def _start(self, name: str, *flags: str, program: Path | None = None) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            command = [str(program or folder() / name), *flags]
            # Hollow kubelets keep their pods' folders in TMPDIR.
            environment = {**os.environ, "TMPDIR": str(self.folder)}
            self.processes[name] = subprocess.Popen(command, stdout=log, stderr=log, cwd=self.folder, env=environment)

    def stop(self) -> None:
        for process in self.processes.values():
            process.kill()
        for process in self.processes.values():
            process.wait()


@contextlib.contextmanager
def running(where: Path, *, nodes: int = 2, gpus: int = 8) -> Iterator[Cluster]:
    """A cluster of hollow nodes `hollow-0`, `hollow-1` …, each ready and with its GPUs."""
    require()
    where.mkdir(parents=True, exist_ok=True)
    cluster = Cluster(where, servers.free_port(), 0)
    _write_keys(cluster)
    try:
        _start_etcd(cluster)
        cluster.start_api_server()
        quiet = ("--leader-elect=false", "--port=0", "--secure-port=0", f"--kubeconfig={cluster.kubeconfig}")
        cluster._start("kube-controller-manager", *quiet, "--allocate-node-cidrs=false")
        cluster._start("kube-scheduler", *quiet)
        with hollow_nodes(cluster, nodes=nodes, gpus=gpus):
            yield cluster
    finally:
        cluster.stop()


@contextlib.contextmanager
def hollow_nodes(cluster: Cluster, *, nodes: int, gpus: int) -> Iterator[None]:
    """Kubelets of kubemark in a network of their own, with a relay to the API server as its only way out."""
    names = [f"hollow-{number}" for number in range(nodes)]
    with _in_own_network(lambda: _start_hollow(cluster, names, gpus=gpus)) as inside:
        relay = threading.Thread(target=_relay, args=(inside, cluster.port), daemon=True)
        relay.start()
        try:
            wait_until(lambda: _are_ready(cluster, names), "hollow nodes", cluster.folder / "hollow-0.log")
            for name in names:
                cluster.offer(name, gpus)
            yield
        finally:
            with contextlib.suppress(OSError):
                inside.shutdown(socket.SHUT_RDWR)
            relay.join()


def wait_until(condition: Callable[[], bool], what: str, log: Path) -> None:
    def end_of_log() -> str:
        return f"{what}; the log says:\n{log.read_text(errors='replace')[-2000:] if log.exists() else 'nothing'}\n"

    until(condition, what=end_of_log, timeout_seconds=READY_SECONDS, interval_seconds=PROGRAM_SECONDS)


def _are_ready(cluster: Cluster, names: list[str]) -> bool:
    """Also starts again what has ended: of sixteen kubemarks of this age one crashes now and then while it starts."""
    alive = [cluster.processes[name].pid for name in names if cluster.processes[name].poll() is None]
    for name in names:
        ended = cluster.processes[name]
        if ended.poll() is not None and alive:
            command = [str(part) for part in cast(list[str], ended.args)]
            cluster._start(name, f"--net=/proc/{alive[0]}/ns/net", *command, program=Path("nsenter"))
    return _ready_nodes(cluster) >= set(names)


def _ready_nodes(cluster: Cluster) -> set[str]:
    ready = set()
    for node in cluster.ask("/api/v1/nodes")["items"]:
        conditions = node["status"].get("conditions", [])
        if any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions):
            ready.add(node["metadata"]["name"])
    return ready


def _start_hollow(cluster: Cluster, names: list[str], *, gpus: int) -> socket.socket:
    """Starts the nodes and gives the socket at which they will look for the API server."""
    inside = socket.create_server(("127.0.0.1", cluster.port), backlog=64)
    for number, name in enumerate(names):
        labels = {
            "nvidia.com/gpu.present": "true",
            "nvidia.com/gpu.product": "NVIDIA-H200",
            "nvidia.com/gpu.count": str(gpus),
            "topology.kubernetes.io/zone": "z1",
            "network.topology.nvidia.com/leaf": f"leaf-{number}",
        }
        flags = (
            "--morph=kubelet",
            f"--name={name}",
            f"--kubeconfig={cluster.kubeconfig}",
            f"--kubelet-port={20_001 + number}",
            f"--kubelet-read-only-port={21_001 + number}",
            "--node-labels=" + ",".join(f"{key}={value}" for key, value in labels.items()),
        )
        cluster._start(name, *flags, program=folder() / "kubemark")
    return inside


def _in_own_network(start: Callable[[], socket.socket]) -> socket.socket:
    """Run `start` in a thread of a new network namespace; what it starts and listens on belongs to that network."""
    opened: list[socket.socket] = []
    problems: list[BaseException] = []

    def body() -> None:
        try:
            libc = ctypes.CDLL(None, use_errno=True)
            if libc.unshare(CLONE_NEWNET) != 0:
                raise OSError(ctypes.get_errno(), "unshare")
            with socket.socket() as control:
                fcntl.ioctl(control, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", IFF_UP_RUNNING))
            opened.append(start())
        except BaseException as error:
            problems.append(error)

    thread = threading.Thread(target=body)
    thread.start()
    thread.join()
    if problems:
        raise problems[0]
    return opened[0]


def _relay(inside: socket.socket, port: int) -> None:
    """Carry each connection out of the hollow nodes' network to the API server; ends when `inside` is shut down."""
    pipes: list[threading.Thread] = []
    with contextlib.suppress(OSError):
        while True:
            near, _ = inside.accept()
            try:
                far = socket.create_connection(("127.0.0.1", port))
            except OSError:
                near.close()
                continue
            for source, drain in ((near, far), (far, near)):
                pipes.append(threading.Thread(target=_copy, args=(source, drain), daemon=True))
                pipes[-1].start()


def _copy(source: socket.socket, drain: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while piece := source.recv(65536):
            drain.sendall(piece)
    for end in (source, drain):
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
    drain.close()


def _start_etcd(cluster: Cluster) -> None:
    cluster.etcd_port = servers.free_ports(2)
    peer = f"http://127.0.0.1:{cluster.etcd_port + 1}"
    client = f"http://127.0.0.1:{cluster.etcd_port}"
    flags = {
        "data-dir": cluster.folder / "etcd",
        "listen-client-urls": client,
        "advertise-client-urls": client,
        "listen-peer-urls": peer,
        "initial-advertise-peer-urls": peer,
        "initial-cluster": f"default={peer}",
    }
    written = [f"--{name}={value}" for name, value in flags.items()]
    cluster._start("etcd", *written, "--unsafe-no-fsync", program=servers.require("etcd"))


def _write_keys(cluster: Cluster) -> None:
    (cluster.folder / "certs").mkdir()
    key = cluster.folder / "accounts.key"
    subprocess.run(["openssl", "genrsa", "-out", key, "2048"], check=True, capture_output=True)
    with (cluster.folder / "tokens.csv").open("w") as file:
        csv.writer(file).writerow([TOKEN, "tests", "1", "system:masters"])
        csv.writer(file).writerow(["hub-token", "system:serviceaccount:watchkeeper:hub", "2", ""])
    named = {"name": "test"}
    config = {
        "current-context": "test",
        "clusters": [named | {"cluster": {"server": cluster.url, "insecure-skip-tls-verify": True}}],
        "users": [named | {"user": {"token": TOKEN}}],
        "contexts": [named | {"context": {"cluster": "test", "user": "test"}}],
    }
    cluster.kubeconfig.write_text(yaml.safe_dump(config))


def _api_server_flags(cluster: Cluster) -> list[str]:
    return [
        f"--etcd-servers=http://127.0.0.1:{cluster.etcd_port}",
        "--bind-address=127.0.0.1",
        "--advertise-address=127.0.0.1",
        f"--secure-port={cluster.port}",
        "--insecure-port=0",
        f"--cert-dir={cluster.folder / 'certs'}",
        f"--token-auth-file={cluster.folder / 'tokens.csv'}",
        f"--service-account-key-file={cluster.folder / 'accounts.key'}",
        f"--service-account-signing-key-file={cluster.folder / 'accounts.key'}",
        "--service-account-issuer=https://kubernetes.default.svc",
        "--authorization-mode=RBAC",
        "--service-cluster-ip-range=10.0.0.0/24",
        "--endpoint-reconciler-type=none",
        # Otherwise no pod may be created until a controller has made the default account, seconds later.
        "--disable-admission-plugins=ServiceAccount",
        "--enable-priority-and-fairness=false",
        # As every real cluster has it; agents that read the kernel log are.
        "--allow-privileged=true",
    ]
