"""Who makes a series: our agent, our agent when asked, the hub, somebody else, or nobody.

By its name alone, from packs/dcgm_fields.csv and packs/metric_aliases.csv. `migrate` and `doctor.stack` ask for each
name that a rule or a dashboard needs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache

from watchkeeper.catalogue import metrics, pack

ALIASES = "metric_aliases.csv"
OWN_PREFIX = "watchkeeper_"
# What the hub makes itself; our other series are on the agents' pages.
OF_THE_HUB = tuple(
    f"{OWN_PREFIX}{what}_"
    for what in ("node", "scheduler", "fabric", "fleet", "inventory", "pending", "queue", "quota", "events", "hub")
)
# Recorded by rules, whoever evaluates them.
RECORDED = ("watchkeeper:", "slo:")
# Names that are some exporter's own; the longest prefix says whose.
OTHERS = {
    "node_": "node_exporter",
    "kube_": "kube-state-metrics, or the hub where it watches Kubernetes",
    "kubelet_": "the kubelet",
    "container_": "cAdvisor in the kubelet",
    "slurm_": "a Slurm exporter",
    "nvidia_smi_": "nvidia_gpu_exporter",
    "nvidia_gpu_": "nvidia_gpu_prometheus_exporter",
    "vllm:": "vLLM",
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
    """Who makes a series of this name."""

    AGENT = "agent"
    # The agent, with the field in a file of --counters.
    AGENT_OPTIONAL = "agent when asked"
    HUB = "hub"
    RULE = "recording rule"
    RENAMED = "renamed"
    ALIAS = "alias"
    # It looks like a field of DCGM and is none.
    NOT_A_FIELD = "nobody"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Origin:
    """`instead` is the expression that means the same here; `who` names an exporter, or the nearest real names."""

    maker: SeriesSource
    instead: str = ""
    who: str = ""


def origin(name: str) -> Origin:
    """Where a series of this name comes from."""
    fields = _fields()
    if name in fields:
        return Origin(SeriesSource.AGENT if fields[name] else SeriesSource.AGENT_OPTIONAL)
    if name in _renamed():
        return Origin(SeriesSource.RENAMED, instead=_renamed()[name])
    if name in _aliases():
        return Origin(SeriesSource.ALIAS, instead=_aliases()[name])
    if name.startswith(OWN_PREFIX):
        return Origin(SeriesSource.HUB if name.startswith(OF_THE_HUB) else SeriesSource.AGENT)
    if name.startswith(RECORDED) or name in ("ALERTS", "ALERTS_FOR_STATE"):
        return Origin(SeriesSource.RULE)
    if name.startswith("DCGM_FI_"):
        row = metrics.lookup(name)
        if row is not None and row.name == name:
            return Origin(SeriesSource.NOT_A_FIELD, who=row.look_next)
        return Origin(SeriesSource.NOT_A_FIELD, who=", ".join(metrics.similar_names(name)[:3]))
    whose = next((who for prefix, who in OTHERS.items() if name.startswith(prefix)), "another exporter")
    return Origin(SeriesSource.OTHER, who=whose)


@cache
def _fields() -> Mapping[str, bool]:
    """DCGM's names up to 4.5 that NVML can fill, and whether the agent shows them unasked."""
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
