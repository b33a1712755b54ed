"""Which program exports a series: the agent, the hub, a recording rule or another exporter.

Decided by its name alone, from packs/dcgm_fields.csv and packs/metric_aliases.csv. `migrate` and `doctor.stack` look up
each name that a rule or a dashboard needs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache

from watchkeeper.catalogue import metrics, pack

ALIASES = "metric_aliases.csv"
OWN_PREFIX = "watchkeeper_"
# Series of the hub; other series with the prefix are on the agents' pages.
HUB_PREFIXES = tuple(
    f"{OWN_PREFIX}{what}_"
    for what in ("node", "scheduler", "fabric", "fleet", "inventory", "pending", "queue", "quota", "events", "hub")
)
# What `render` reads from the hub's /federate: series that are not on its own page, and holders of GPUs.
FEDERATED_PREFIXES = (
    *(prefix for prefix in HUB_PREFIXES if prefix != f"{OWN_PREFIX}hub_"),
    f"{OWN_PREFIX}gpu_workload_",
    f"{OWN_PREFIX}gpu_attribution",
)
# Recorded by rules, on any server.
RECORDED = ("watchkeeper:", "slo:")
# Prefixes of other exporters' names.
OTHERS = {
    "node_": "node_exporter",
    "kube_": "kube-state-metrics, or the hub where it watches Kubernetes",
    "kubelet_": "the kubelet",
    "container_": "cAdvisor in the kubelet",
    "slurm_": "a Slurm exporter",
    "nvidia_smi_": "nvidia_gpu_exporter",
    "nvidia_gpu_": "nvidia_gpu_prometheus_exporter",
    "vllm:": "vLLM",
    "http_requests_total": "vLLM's HTTP server, among others",
    "kserve_vllm:": "vLLM below KServe's LLMInferenceService",
    "sglang:": "SGLang",
    "tgi_": "Text Generation Inference",
    "nv_inference_": "Triton",
    "nv_trt_llm_": "Triton's backend for TensorRT-LLM",
    "ts_": "TorchServe",
    "Requests": "TorchServe",
    "ray_serve_": "Ray Serve",
    "request_predict_": "KServe",
    "training_": "the training program (watchkeeper.instrument)",
    "inference_": "the serving program",
    "DCGM_EXP_": "dcgm-exporter itself",
}


class SeriesSource(StrEnum):
    AGENT = "agent"
    # The agent, if a --counters file lists the field.
    AGENT_OPTIONAL = "agent when asked"
    HUB = "hub"
    RULE = "recording rule"
    RENAMED = "renamed"
    ALIAS = "alias"
    # It looks like a DCGM field, but DCGM has no such field.
    UNKNOWN_FIELD = "unknown"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Origin:
    """`replacement` is the equivalent expression here; `exporter` names an exporter, or the closest existing names."""

    source: SeriesSource
    replacement: str = ""
    exporter: str = ""


def origin(name: str) -> Origin:
    fields = _fields()
    if name in fields:
        return Origin(SeriesSource.AGENT if fields[name] else SeriesSource.AGENT_OPTIONAL)
    if name in _renamed():
        return Origin(SeriesSource.RENAMED, replacement=_renamed()[name])
    if name in _aliases():
        return Origin(SeriesSource.ALIAS, replacement=_aliases()[name])
    if name.startswith(OWN_PREFIX):
        return Origin(SeriesSource.HUB if name.startswith(HUB_PREFIXES) else SeriesSource.AGENT)
    if name.startswith(RECORDED) or name in ("ALERTS", "ALERTS_FOR_STATE"):
        return Origin(SeriesSource.RULE)
    if name.startswith("DCGM_FI_"):
        row = metrics.lookup(name)
        if row is not None and row.name == name:
            return Origin(SeriesSource.UNKNOWN_FIELD, exporter=row.look_next)
        return Origin(SeriesSource.UNKNOWN_FIELD, exporter=", ".join(metrics.similar_names(name)[:3]))
    whose = next((who for prefix, who in OTHERS.items() if name.startswith(prefix)), "another exporter")
    return Origin(SeriesSource.OTHER, exporter=whose)


@cache
def _fields() -> Mapping[str, bool]:
    """DCGM names up to 4.5 that NVML can provide, and whether the agent exports them by default."""
    return dict(pack.load(metrics.FIELDS, lambda cells: (cells["name"], pack.yes_or_no(cells["chosen"]))))


@cache
def _renamed() -> Mapping[str, str]:
    rows = pack.load(metrics.FIELDS, lambda cells: (cells["name_from_4_6"], cells["name"]))
    return {new: old for new, old in rows if new and new not in _fields()}


@cache
def _aliases() -> Mapping[str, str]:
    def read(cells: Mapping[str, str]) -> tuple[str, str]:
        pack.required(cells["source"])
        return pack.required(cells["name"]), pack.required(cells["instead"])

    return dict(pack.load(ALIASES, read))
