"""`render keda`: ScaledObjects that follow the queue and the latency objective of a model, and the same as plain HPAs.

Services come from `render.services`, objectives from `rules.slos`, and the queries ask what the shipped rules record.
The queue leads: waiting requests are shared by new replicas, latency is not. An objective of latency pulls along when
its budget burns, by half as many replicas more at a time, because its number does not say how many are missing. An
objective of answers pulls nothing: a server that fails does so with more replicas too.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from watchkeeper.config import settings as config
from watchkeeper.errors import SettingsError
from watchkeeper.hub import rule_loops
from watchkeeper.render import yaml_text
from watchkeeper.render.tree import RenderedFile
from watchkeeper.render.yaml_text import YamlPart
from watchkeeper.rules import reload, slo
from watchkeeper.workloads.replicas import (
    CALM_SECONDS,
    MAX_GROWTH,
    MAX_REPLICAS,
    MAX_WAITING_PER_REPLICA,
    MIN_REPLICAS,
    SHRINK_EVERY_SECONDS,
)

SERVICE = re.compile(r"(?P<namespace>[a-z0-9-]+)/(?P<name>[a-z0-9.-]+)=(?P<model>[^\s\"{}]+)")
EXAMPLE = "serving/llama=llama-3-8b"
# Requests over a bucket's bound are late ones: that makes an objective one of latency.
LATE = re.compile(r'_bucket\{[^}]*\ble="(?P<seconds>[0-9.]+)"')
DEFAULT_PORTS = {"http": 80, "https": 443}
READER = "watchkeeper-reader"
# Loading a model takes minutes, so replicas go slowly and one at a time.
DOWN = {
    "stabilizationWindowSeconds": round(CALM_SECONDS),
    "policies": [{"type": "Pods", "value": 1, "periodSeconds": round(SHRINK_EVERY_SECONDS)}],
}
UP = {"stabilizationWindowSeconds": 0, "policies": [{"type": "Percent", "value": 100, "periodSeconds": 60}]}
ABOUT_OBJECT = """Scales {name} by the requests that wait for {model}, and when its latency objective burns. Needs KEDA.
  kubectl apply -f .
The server that is asked: {server}"""
ABOUT_HPA = """The same without KEDA: Kubernetes' own autoscaler over external metrics, which an adapter gives it.
Use either this or KEDA; two autoscalers of one Deployment fight."""
ABOUT_ADAPTER = """Values for the chart prometheus-adapter: what the HPAs of this folder ask for.
  helm install adapter prometheus-community/prometheus-adapter -n monitoring -f prometheus-adapter-values.yaml"""


@dataclass(frozen=True, slots=True)
class ScaledService:
    """A Deployment and the model it serves."""

    namespace: str
    name: str
    model: str


@dataclass(frozen=True, slots=True)
class ScalingSignal:
    """One number that a service is scaled by: `per_replica` is shared by replicas, the other kind is not."""

    name: str
    query: str
    threshold: str
    per_replica: bool
    why: str


def files(settings: config.Settings) -> list[RenderedFile]:
    chosen = [_service(text) for text in settings.render.services or (EXAMPLE,)]
    objectives = latency_objectives(settings)
    found = [
        *(RenderedFile(f"keda/{one.namespace}-{one.name}.yaml", _scaled(one, objectives, settings)) for one in chosen),
        *(RenderedFile(f"hpa/{one.namespace}-{one.name}.yaml", _plain(one, objectives, settings)) for one in chosen),
        RenderedFile("hpa/prometheus-adapter-values.yaml", _adapter(chosen, objectives, settings)),
    ]
    if _asks_hub(settings):
        found += [
            RenderedFile(f"keda/{space}-access.yaml", _access(space)) for space in sorted({s.namespace for s in chosen})
        ]
    return found


def latency_objectives(settings: config.Settings) -> list[slo.Slo]:
    """The objectives of a model's latency: their errors are requests over a bucket's bound."""
    objectives = reload.read_sources(rule_loops.rule_sources(settings)).slos
    return [one for one in objectives if is_latency(one)]


def is_latency(objective: slo.Slo) -> bool:
    return "model_name" in objective.by and LATE.search(objective.errors) is not None


def signals(service: ScaledService, objectives: Sequence[slo.Slo], cluster: str) -> list[ScalingSignal]:
    """What a service is scaled by; each query gives one number, or none where there is no traffic."""
    about = f'cluster="{cluster}", model_name="{service.model}"'
    found = [
        ScalingSignal(
            "waiting",
            f"sum(inference_requests_waiting{{{about}}})",
            f"{MAX_WAITING_PER_REPLICA:g}",
            True,
            f"Requests that wait, {MAX_WAITING_PER_REPLICA:g} for each replica at most.",
        ),
        # Without it a quiet queue would take all replicas but one away, and the next request would bring them back.
        ScalingSignal(
            "load",
            f"sum(rate(inference_request_duration_seconds_count{{{about}}}[5m])) / "
            f"max(watchkeeper:inference_replica_requests:max1d{{{about}}})",
            "1",
            True,
            "Replicas that the requests of now need, by the most that one has answered within a day.",
        ),
    ]
    for one in objectives:
        late = LATE.search(one.errors)
        assert late is not None
        found.append(
            ScalingSignal(
                f"burn-{one.name}",
                f'clamp_max(max({slo.RATIO}5m{{slo="{one.name}", {about}}}) / {one.budget:.6g}, {MAX_GROWTH:g})',
                "1",
                False,
                f"More than {one.budget:.4g} of the requests take over {late['seconds']} s: half as many again.",
            )
        )
    return found


def _service(text: str) -> ScaledService:
    match = SERVICE.fullmatch(text)
    if match is None:
        raise SettingsError(
            f"`{text[:80]}` is not a service",
            where="render.services",
            remedy=f"Write NAMESPACE/NAME=MODEL, as in {EXAMPLE}",
        )
    return ScaledService(**match.groupdict())


def _asks_hub(settings: config.Settings) -> bool:
    return settings.query.url is None


def _server(settings: config.Settings) -> str:
    if settings.query.url is not None:
        return settings.query.url.rstrip("/")
    return f"http://watchkeeper-hub.{settings.render.namespace}.svc:9480"


def _scaled(service: ScaledService, objectives: Sequence[slo.Slo], settings: config.Settings) -> str:
    server = _server(settings)
    parts = [_trigger(one, server, settings) for one in signals(service, objectives, settings.fleet.cluster)]
    spec = {
        "scaleTargetRef": {"kind": "Deployment", "name": service.name},
        "minReplicaCount": MIN_REPLICAS,
        "maxReplicaCount": MAX_REPLICAS,
        "pollingInterval": 15,
        "cooldownPeriod": 600,
        # Where the server does not answer, replicas stay as they are: nobody knows is not nobody waits.
        "fallback": {"failureThreshold": 3, "replicas": MIN_REPLICAS, "behavior": "currentReplicasIfHigher"},
        "advanced": {"horizontalPodAutoscalerConfig": {"behavior": {"scaleUp": UP, "scaleDown": DOWN}}},
    }
    head = {
        "apiVersion": "keda.sh/v1alpha1",
        "kind": "ScaledObject",
        "metadata": {"name": service.name, "namespace": service.namespace},
        "spec": spec,
    }
    about = ABOUT_OBJECT.format(name=service.name, model=service.model, server=server)
    triggers = textwrap.indent(yaml_text.dump_list("triggers", parts), "  ")
    return yaml_text.document(about, [YamlPart(head)]) + triggers


def _trigger(signal: ScalingSignal, server: str, settings: config.Settings) -> YamlPart:
    found: dict[str, Any] = {
        "type": "prometheus",
        "metricType": "AverageValue" if signal.per_replica else "Value",
        "metadata": {
            "serverAddress": server,
            "query": signal.query,
            "threshold": signal.threshold,
            # No answer is an error and not a 0, which would take replicas away.
            "ignoreNullValues": "false" if signal.per_replica else "true",
        },
    }
    if _asks_hub(settings):
        found["metadata"]["authModes"] = "bearer"
        found["authenticationRef"] = {"name": READER}
    return YamlPart(found, signal.why)


def _access(namespace: str) -> str:
    about = (
        f"How KEDA shows itself to the hub: a viewer's token, in a Secret `{READER}` of this namespace that you make:\n"
        f"  kubectl -n {namespace} create secret generic {READER} --from-literal=token=…"
    )
    found = {
        "apiVersion": "keda.sh/v1alpha1",
        "kind": "TriggerAuthentication",
        "metadata": {"name": READER, "namespace": namespace},
        "spec": {"secretTargetRef": [{"parameter": "bearerToken", "name": READER, "key": "token"}]},
    }
    return yaml_text.document(about, [YamlPart(found)])


def _metric(service: ScaledService, signal: ScalingSignal) -> str:
    return f"watchkeeper_{service.namespace}_{service.name}_{signal.name}".replace("-", "_").replace(".", "_")


def _plain(service: ScaledService, objectives: Sequence[slo.Slo], settings: config.Settings) -> str:
    metrics = []
    for signal in signals(service, objectives, settings.fleet.cluster):
        goal = "averageValue" if signal.per_replica else "value"
        target = {"type": goal[0].upper() + goal[1:], goal: signal.threshold}
        metrics.append(
            {"type": "External", "external": {"metric": {"name": _metric(service, signal)}, "target": target}}
        )
    found = {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": service.name, "namespace": service.namespace},
        "spec": {
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": service.name},
            "minReplicas": MIN_REPLICAS,
            "maxReplicas": MAX_REPLICAS,
            "metrics": metrics,
            "behavior": {"scaleUp": UP, "scaleDown": DOWN},
        },
    }
    return yaml_text.document(ABOUT_HPA, [YamlPart(found)])


def _adapter(services: Sequence[ScaledService], objectives: Sequence[slo.Slo], settings: config.Settings) -> str:
    """The adapter asks whether a series exists before it asks for a metric; the query itself is ours."""
    rules = [
        {
            "seriesQuery": re.search(r"[a-z][\w:]+\{[^}]*\}", signal.query)[0],  # type: ignore[index]
            "resources": {"namespaced": False},
            "name": {"as": _metric(service, signal)},
            "metricsQuery": signal.query,
        }
        for service in services
        for signal in signals(service, objectives, settings.fleet.cluster)
    ]
    scheme, _, address = _server(settings).partition("://")
    host, _, port = address.partition(":")
    server = {"url": f"{scheme}://{host}", "port": int(port) if port.isdigit() else DEFAULT_PORTS[scheme]}
    parts = [YamlPart({"prometheus": server, "rules": {"default": False, "external": rules}})]
    if _asks_hub(settings):
        mount = {"name": "reader", "mountPath": "/etc/watchkeeper", "readOnly": True}
        access = {
            "extraArguments": ["--prometheus-token-file=/etc/watchkeeper/token"],
            "extraVolumes": [{"name": "reader", "secret": {"secretName": READER}}],
            "extraVolumeMounts": [mount],
        }
        parts.append(
            YamlPart(access, f"The hub wants a viewer's token: key `token` of a Secret `{READER}` beside the adapter.")
        )
    return yaml_text.document(ABOUT_ADAPTER, parts)
