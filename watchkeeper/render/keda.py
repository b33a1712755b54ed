"""`render keda`: ScaledObjects that follow the queue and the latency objective of a model, and equivalent HPAs.

Services come from `render.services`, objectives from `rules.slos`, and queries use series of the shipped rules. The
queue is the main signal, because new replicas share waiting requests. A latency SLO whose error budget burns adds half
as many replicas at a time, because latency does not show how many are missing. An availability SLO does not scale: a
server that fails also fails with more replicas.
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
from watchkeeper.workloads import replicas

SERVICE = re.compile(r"(?P<namespace>[a-z0-9-]+)/(?P<name>[a-z0-9.-]+)=(?P<model>[^\s\"{}]+)")
EXAMPLE = "serving/llama=llama-3-8b"
# A latency SLO counts requests above a histogram bucket.
LATE = re.compile(r'_bucket\{[^}]*\ble=~?"(?P<seconds>[0-9.]+)')
DEFAULT_PORTS = {"http": 80, "https": 443}
READER = "watchkeeper-reader"
# Loading a model takes minutes, so replicas are removed slowly, one at a time.
DOWN = {
    "stabilizationWindowSeconds": round(replicas.CALM_SECONDS),
    "policies": [{"type": "Pods", "value": 1, "periodSeconds": round(replicas.SHRINK_EVERY_SECONDS)}],
}
UP = {"stabilizationWindowSeconds": 0, "policies": [{"type": "Percent", "value": 100, "periodSeconds": 60}]}
ABOUT_OBJECT = """Scales {name} by the waiting requests of {model}, and by its latency SLO. Needs KEDA.
  kubectl apply -f .
Query server: {server}"""
ABOUT_HPA = """The same without KEDA: HorizontalPodAutoscalers with external metrics, which prometheus-adapter provides.
Use either this or KEDA; two autoscalers of one Deployment conflict."""
ABOUT_ADAPTER = """Values for the chart prometheus-adapter: the external metrics of the HPAs in this folder.
  helm install adapter prometheus-community/prometheus-adapter -n monitoring -f prometheus-adapter-values.yaml"""


@dataclass(frozen=True, slots=True)
class ScaledService:
    namespace: str
    name: str
    model: str


@dataclass(frozen=True, slots=True)
class ScalingSignal:
    """One metric that a service scales by; `per_replica` metrics are divided by the number of replicas."""

    name: str
    query: str
    threshold: str
    per_replica: bool
    why: str


def files(settings: config.Settings) -> list[RenderedFile]:
    chosen = [_service(text) for text in settings.render.services or (EXAMPLE,)]
    objectives = latency_objectives(settings)
    texts = {"hpa/prometheus-adapter-values.yaml": _adapter(chosen, objectives, settings)}
    for service in chosen:
        file = f"{service.namespace}-{service.name}.yaml"
        texts[f"keda/{file}"] = _scaled(service, objectives, settings)
        texts[f"hpa/{file}"] = _plain(service, objectives, settings)
        if settings.query.url is None:
            texts[f"keda/{service.namespace}-access.yaml"] = _access(service.namespace)
    return [RenderedFile(path, text) for path, text in texts.items()]


def latency_objectives(settings: config.Settings) -> list[slo.Slo]:
    """The latency SLOs: their errors are requests above a histogram bucket."""
    objectives = reload.read_sources(rule_loops.rule_sources(settings)).slos
    return [objective for objective in objectives if is_latency(objective)]


def is_latency(objective: slo.Slo) -> bool:
    return "model_name" in objective.by and LATE.search(objective.errors) is not None


def signals(service: ScaledService, objectives: Sequence[slo.Slo], cluster: str) -> list[ScalingSignal]:
    """The scaling signals of a service; each query returns one number, or none without traffic."""
    about = _selects(service, cluster)
    query = f"sum(inference_requests_waiting{{{about}}})"
    why = f"Waiting requests, at most {replicas.MAX_WAITING_PER_REPLICA:g} for each replica."
    waiting = ScalingSignal("waiting", query, f"{replicas.MAX_WAITING_PER_REPLICA:g}", True, why)
    # Without it an empty queue would remove all replicas but one, and the next requests would add them again.
    query = f"sum(rate(inference_request_duration_seconds_count{{{about}}}[5m])) / "
    query += f"max(watchkeeper:inference_replica_requests:max1d{{{about}}})"
    why = "Replicas that the current request rate needs, by the highest rate of one replica within a day."
    scaling_signals = [waiting, ScalingSignal("load", query, "1", True, why)]
    for objective in objectives:
        late = LATE.search(objective.errors)
        assert late is not None
        burning = f'{slo.RATIO}5m{{slo="{objective.name}", {about}}}'
        # A model has the objectives for which its server has metrics; an HPA with a missing metric removes no replica.
        query = f"clamp_max((max({burning}) or vector(0)) / {objective.budget:.6g}, {replicas.MAX_GROWTH:g})"
        why = f"More than {objective.budget:.4g} take over {late['seconds']} s: add half as many."
        scaling_signals.append(ScalingSignal(f"burn-{objective.name}", query, "1", False, why))
    return scaling_signals


def _selects(service: ScaledService, cluster: str) -> str:
    return f'cluster="{cluster}", model_name="{service.model}"'


def _service(text: str) -> ScaledService:
    match = SERVICE.fullmatch(text)
    if match is None:
        remedy = f"Write NAMESPACE/NAME=MODEL, as in {EXAMPLE}"
        raise SettingsError(f"`{text[:80]}` is not a service", where="render.services", remedy=remedy)
    return ScaledService(**match.groupdict())


def _server(settings: config.Settings) -> str:
    """The query server: that of `query.url`, or the hub, which needs a token."""
    if settings.query.url is not None:
        return settings.query.url.rstrip("/")
    return f"http://watchkeeper-hub.{settings.render.namespace}.svc:9480"


def _scaled(service: ScaledService, objectives: Sequence[slo.Slo], settings: config.Settings) -> str:
    server = _server(settings)
    parts = [_trigger(signal, server, settings) for signal in signals(service, objectives, settings.fleet.cluster)]
    spec = {
        "scaleTargetRef": {"kind": "Deployment", "name": service.name},
        "minReplicaCount": replicas.MIN_REPLICAS,
        "maxReplicaCount": replicas.MAX_REPLICAS,
        "pollingInterval": 15,
        "cooldownPeriod": 600,
        # If the server does not respond, replicas stay unchanged: unknown is not an empty queue.
        "fallback": {"failureThreshold": 3, "replicas": replicas.MIN_REPLICAS, "behavior": "currentReplicasIfHigher"},
        "advanced": {"horizontalPodAutoscalerConfig": {"behavior": {"scaleUp": UP, "scaleDown": DOWN}}},
    }
    head = _kubernetes_object("keda.sh/v1alpha1", "ScaledObject", service.name, service.namespace, spec=spec)
    about = ABOUT_OBJECT.format(name=service.name, model=service.model, server=server)
    triggers = textwrap.indent(yaml_text.dump_list("triggers", parts), "  ")
    return yaml_text.document(about, [head]) + triggers


def _kubernetes_object(version: str, kind: str, name: str, namespace: str, *, spec: dict[str, Any]) -> YamlPart:
    metadata = {"name": name, "namespace": namespace}
    return YamlPart({"apiVersion": version, "kind": kind, "metadata": metadata, "spec": spec})


def _trigger(signal: ScalingSignal, server: str, settings: config.Settings) -> YamlPart:
    trigger: dict[str, Any] = {
        "type": "prometheus",
        "metricType": "AverageValue" if signal.per_replica else "Value",
        "metadata": {
            "serverAddress": server,
            "query": signal.query,
            "threshold": signal.threshold,
            # No result is an error and not 0, which would remove replicas.
            "ignoreNullValues": "false" if signal.per_replica else "true",
        },
    }
    if settings.query.url is None:
        trigger["metadata"]["authModes"] = "bearer"
        trigger["authenticationRef"] = {"name": READER}
    return YamlPart(trigger, signal.why)


def _access(namespace: str) -> str:
    about = (
        f"KEDA authenticates with a viewer's token. Create the Secret `{READER}` in this namespace:\n"
        f"  kubectl -n {namespace} create secret generic {READER} --from-literal=token=…"
    )
    spec = {"secretTargetRef": [{"parameter": "bearerToken", "name": READER, "key": "token"}]}
    authentication = _kubernetes_object("keda.sh/v1alpha1", "TriggerAuthentication", READER, namespace, spec=spec)
    return yaml_text.document(about, [authentication])


def _metric(service: ScaledService, signal: ScalingSignal) -> str:
    return f"watchkeeper_{service.namespace}_{service.name}_{signal.name}".replace("-", "_").replace(".", "_")


def _plain(service: ScaledService, objectives: Sequence[slo.Slo], settings: config.Settings) -> str:
    metrics = []
    for signal in signals(service, objectives, settings.fleet.cluster):
        goal = "averageValue" if signal.per_replica else "value"
        target = {"type": goal[0].upper() + goal[1:], goal: signal.threshold}
        external = {"metric": {"name": _metric(service, signal)}, "target": target}
        metrics.append({"type": "External", "external": external})
    spec = {
        "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": service.name},
        "minReplicas": replicas.MIN_REPLICAS,
        "maxReplicas": replicas.MAX_REPLICAS,
        "metrics": metrics,
        "behavior": {"scaleUp": UP, "scaleDown": DOWN},
    }
    kind = "HorizontalPodAutoscaler"
    autoscaler = _kubernetes_object("autoscaling/v2", kind, service.name, service.namespace, spec=spec)
    return yaml_text.document(ABOUT_HPA, [autoscaler])


def _adapter(services: Sequence[ScaledService], objectives: Sequence[slo.Slo], settings: config.Settings) -> str:
    """The adapter discovers a series before it runs the metric's query: one that every served model has."""
    rules = [
        {
            "seriesQuery": f"inference_requests_waiting{{{_selects(service, settings.fleet.cluster)}}}",
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
    if settings.query.url is None:
        access = {
            "extraArguments": ["--prometheus-token-file=/etc/watchkeeper/token"],
            "extraVolumes": [{"name": "reader", "secret": {"secretName": READER}}],
            "extraVolumeMounts": [{"name": "reader", "mountPath": "/etc/watchkeeper", "readOnly": True}],
        }
        why = f"The hub needs a viewer's token: key `token` of a Secret `{READER}` in the adapter's namespace."
        parts.append(YamlPart(access, why))
    return yaml_text.document(ABOUT_ADAPTER, parts)
