"""The fleet: nodes, GPUs, and `Place`, the name of anything that can break.

A GPU is identified by its UUID, because index, PCI address and even serial number change. What a node should have
(`expected_gpus`) is kept apart from what it reports: without an expectation, nothing counts as missing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from urllib.parse import quote, unquote

# Far above any fleet or job: a larger number in a table or an option is a mistake.
MAX_GPUS = 1_000_000


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """What can break, from a whole cluster down to a MIG instance or a port.

    `domain` names a failure domain such as `rack=r12`; a place has a domain or a node, not both.
    """

    cluster: str
    node: str | None = None
    gpu: str | None = None
    slice: str | None = None
    port: str | None = None
    domain: str | None = None

    def __post_init__(self) -> None:
        if not self.cluster:
            raise ValueError("a place needs a cluster")
        if self.node is None and (self.gpu or self.slice or self.port):
            raise ValueError("a GPU, MIG instance or port needs its node")
        if self.node is not None and self.domain is not None:
            raise ValueError("a place has a node or a domain, not both")
        if self.slice is not None and self.gpu is None:
            raise ValueError("a MIG instance needs its GPU")
        if self.gpu is not None and self.port is not None:
            raise ValueError("a place has a GPU or a port, not both")

    def is_named_in(self, title: str) -> bool:
        """Whether a title contains the UUID of this GPU, because its index was not known yet."""
        return self.gpu is not None and self.gpu in title

    @property
    def whole_node(self) -> Place:
        """The node of this place; a domain or a cluster is returned unchanged."""
        return Place(self.cluster, node=self.node, domain=self.domain)

    @property
    def parent(self) -> Place | None:
        """The next larger place that follows from the name; None for a cluster."""
        if self.slice is not None:
            return replace(self, slice=None)
        if self.gpu is not None or self.port is not None:
            return replace(self, gpu=None, port=None)
        if self.node is not None or self.domain is not None:
            return Place(self.cluster)
        return None

    def encloses(self, other: Place) -> bool:
        """Whether `other` is this place or inside it; for domains see `Node.failure_domains`."""
        inner: Place | None = other
        while inner is not None and inner != self:
            inner = inner.parent
        return inner is not None

    def __str__(self) -> str:
        """`cluster/node=n1/gpu=GPU-…`; `parse` reads it back."""
        parts = {"node": self.node, "gpu": self.gpu, "slice": self.slice, "port": self.port, "domain": self.domain}
        texts = [f"{name}={quote(value, safe='')}" for name, value in parts.items() if value is not None]
        return "/".join([quote(self.cluster, safe=""), *texts])

    @classmethod
    def parse(cls, text: str) -> Place:
        cluster, *parts = text.split("/")
        fields = dict(part.split("=", 1) for part in parts if "=" in part)
        if len(fields) != len(parts):
            raise ValueError(f"`{text}` is not a place such as main/node=n1/gpu=GPU-1")
        try:
            return cls(unquote(cluster), **{name: unquote(value) for name, value in fields.items()})
        except TypeError as error:
            raise ValueError(f"`{text}` is not a place: {error}") from error


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU as its node reports it; a value that is not reported is None."""

    uuid: str
    index: int | None = None
    pci: str | None = None
    model: str | None = None


@dataclass(frozen=True, slots=True)
class Node:
    """A node of the fleet, as the inventory expects it; `expected_gpus` is None if unknown."""

    cluster: str
    name: str
    pool: str = ""
    aliases: frozenset[str] = frozenset()
    expected_gpus: int | None = None
    domains: Mapping[str, str] = field(default_factory=dict)
    source: str = ""

    @property
    def place(self) -> Place:
        return Place(self.cluster, node=self.name)

    def failure_domains(self) -> tuple[Place, ...]:
        """The failure domains of this node, for example its rack and its leaf switch."""
        return tuple(Place(self.cluster, domain=f"{kind}={name}") for kind, name in sorted(self.domains.items()))


@dataclass(frozen=True, slots=True)
class GpuInFleet(Gpu):
    """A GPU of the map; `workload` is its holder, None if free or unknown."""

    workload: str | None = None


@dataclass(frozen=True, slots=True)
class NodeInFleet:
    """A node of the map; an expected GPU that was never reported is None."""

    name: str
    pool: str
    rack: str | None
    domains: Mapping[str, str]
    expected_gpus: int | None
    gpus: tuple[GpuInFleet | None, ...]


def normalise_pci(text: str) -> str:
    """One spelling of a PCI address, `dddd:bb:dd`, whatever tool wrote it.

    The kernel log writes `PCI:0000:5d:00`, dcgm-exporter `00000000:5D:00.0`, lspci `5d:00.0`.
    """
    address = text.lower().removeprefix("pci:").split(".")[0]
    domain, bus, device = ("0000:" + address if address.count(":") == 1 else address).split(":")
    return f"{int(domain, 16):04x}:{int(bus, 16):02x}:{int(device, 16):02x}"


# A rack, pool or team without a name is shown under this name, and never dropped.
UNMAPPED = "unmapped"
# dcgm-exporter writes the holder of a GPU into these labels; Prometheus renames them when they clash with its own.
HOLDER_LABELS = (("namespace", "pod"), ("exported_namespace", "exported_pod"), ("", "hpc_job"))


def holder_from_labels(labels: Mapping[str, str]) -> str | None:
    """The workload that holds a GPU, from the labels of its samples: `namespace/pod`, or a Slurm job's id."""
    for space, name in HOLDER_LABELS:
        if labels.get(name):
            return f"{labels.get(space, '')}/{labels[name]}" if space else labels[name]
    # Our own info series have pods, jobs and programs in one label.
    if labels.get("workload"):
        return "/".join(part for part in (labels.get("namespace"), labels["workload"]) if part)
    return None


# The largest node has 16 GPUs; a faulty registration must not fill the memory of the hub.
MAX_GPUS_PER_NODE = 128


@dataclass(frozen=True, slots=True)
class NodeRegistration:
    """`expected_gpus` None: unknown. `metrics_port` None: not readable from outside, or only with a credential."""

    cluster: str
    node: str
    expected_gpus: int | None = None
    gpus: tuple[Gpu, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    metrics_port: int | None = None
    metrics_tls: bool = False
