"""`render kubernetes`: agent and hub as a kustomization, with optional parts as components.

Manifests and their values are in packs/kubernetes; `manifests` fills them. `helm` makes its chart from the same files,
and `operator` its monitors and rules. No secret is rendered: secrets.sh creates them in the cluster.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator
from typing import Any

import yaml

from watchkeeper import __version__
from watchkeeper.config import settings as config
from watchkeeper.errors import SettingsError
from watchkeeper.kit import yaml_text as kit_yaml
from watchkeeper.render import fleet_facts, grafana, manifests, prometheus, settings_text, yaml_text
from watchkeeper.render.tree import RenderedFile
from watchkeeper.scrape import discovery

BASE = ("agent", "hub", "rbac", "network", "disruption")
# Components, and the value that enables each.
COMPONENTS = {
    "prometheus-operator": "prometheusOperator.enabled",
    "dashboards": "dashboards.enabled",
    "repair": "repair.enabled",
    "reclaim": "reclaim.enabled",
}
# Components with RBAC permissions of the hub: packs/kubernetes/NAME-rbac.yaml.
RBAC_COMPONENTS = ("repair", "reclaim")
KUSTOMIZATION = "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\n"
COMPONENT = "apiVersion: kustomize.config.k8s.io/v1alpha1\nkind: Component\n"
ABOUT = """Agent and hub. Review it with `kubectl kustomize .`, create secrets with secrets.sh, then:
  kubectl apply -k .
Put your changes into a kustomization of your own that lists this directory under `resources`."""
ABOUT_COMPONENTS = """Optional components. Enable one by moving its line to `components`, or with `[render] values`."""
COMPONENT_SUMMARIES = {
    "prometheus-operator": "PodMonitor, ServiceMonitor and PrometheusRules; needs the Prometheus Operator",
    "dashboards": "dashboards for the sidecar of Grafana's chart",
    "repair": "permissions to cordon and drain nodes; needed only for repairs",
    "reclaim": "permissions to scale down workloads with idle GPUs; needed only to reclaim GPUs",
}


def files(settings: config.Settings) -> list[RenderedFile]:
    values, manifest_facts = load_values(settings), facts(settings)

    def fill(path: str) -> str:
        return manifests.fill_manifest(manifests.read_manifest(path), values, manifest_facts)

    base = [
        RenderedFile(f"base/{name}.yaml", text)
        for name in ("namespace", *BASE)
        if has_objects(text := fill(f"base/{name}.yaml"))
    ]
    listed = "".join(f"  - {file.path.removeprefix('base/')}\n" for file in base)
    return [
        RenderedFile("kustomization.yaml", _top_kustomization(values)),
        RenderedFile("base/kustomization.yaml", f"{KUSTOMIZATION}resources:\n{listed}"),
        *base,
        *_monitoring(settings, values, manifest_facts),
        *_dashboards(settings, values, manifest_facts),
        *(
            file
            for name in RBAC_COMPONENTS
            for file in _component(
                name, {"rbac.yaml": manifests.fill_manifest(rbac_manifest(name), values, manifest_facts)}
            )
        ),
        RenderedFile("secrets.sh", fill("chart/secrets.sh"), is_executable=True),
    ]


def load_values(settings: config.Settings) -> dict[str, Any]:
    """The values for these settings, with `[render] values` applied."""
    return dict(kit_yaml.load(values_text(settings)))


def values_text(settings: config.Settings) -> str:
    """The text of values.yaml with its comments, filled from the settings."""
    text = manifests.read_manifest("values.yaml")
    repairs_here = settings.remediate.driver is config.DriverName.KUBERNETES
    written = {
        "cluster": settings.fleet.cluster,
        "image": settings.render.image,
        "repair": repairs_here,
        "reclaim": repairs_here and settings.remediate.reclaim,
    }
    for name, value in written.items():
        text = text.replace(f"@{name}@", json.dumps(value))
    text = text.replace("    @settings@\n", textwrap.indent(hub_settings(settings), "    ", lambda _: True))
    plain = dict(kit_yaml.load(text))
    for chosen in settings.render.values:
        text = _set_value(text, plain, chosen)
    return text


def facts(settings: config.Settings) -> dict[str, str]:
    """Facts of manifests that are not values."""
    return {
        "namespace": settings.render.namespace,
        "version": __version__,
        "job": discovery.DiscoveryDefaults().job,
        "hubSeries": json.dumps(prometheus.hub_selectors(settings)),
    }


def hub_settings(settings: config.Settings) -> str:
    """The hub's settings file inside the cluster."""
    return settings_text.toml(
        settings,
        {
            "hub.host": "0.0.0.0",  # noqa: S104 (inside its pod; network.yaml limits access)
            "hub.port": None,
            "hub.data": "/var/lib/watchkeeper",
            "hub.tokens": "/etc/watchkeeper-tokens/tokens",
            "fleet.cluster": settings.fleet.cluster,
            "fleet.kubernetes": True,
            "fleet.kubeconfig": None,
            "fleet.kubernetes_context": None,
            "query.data": None,
            "journal.path": None,
        },
    )


def rbac_manifest(name: str) -> str:
    """The RBAC manifest for repairs or reclaims, for a hub in any namespace."""
    return manifests.read_manifest(f"{name}-rbac.yaml").replace("namespace: watchkeeper}", "namespace: @namespace@}")


def rule_objects(settings: config.Settings) -> dict[str, str]:
    """The `spec` of a PrometheusRule for each rule file, by its name."""
    specs = {}
    for rule in fleet_facts.rule_texts(settings):
        groups = kit_yaml.load(rule.text)["groups"]
        specs[rule.name.lower().replace("_", "-")] = yaml_text.dump({"spec": {"groups": groups}})
    return specs


def dashboard_objects(settings: config.Settings) -> dict[str, str]:
    """The JSON of each dashboard, by its name."""
    return {
        name: json.dumps(board, ensure_ascii=False, sort_keys=True)
        for name, board in grafana.dashboards(settings).items()
    }


def has_objects(text: str) -> bool:
    return any(document is not None for document in yaml.safe_load_all(text))


def _set_value(text: str, plain: dict[str, Any], chosen: str) -> str:
    """Set one `path=value` in the text of values.yaml."""
    path, equals, written = chosen.partition("=")
    where = f"render.values: {chosen}"
    if not equals:
        raise SettingsError("expected `path=value`, as in hub.storage.size=200Gi", where=where)
    before = manifests.value(plain, path)
    value = yaml.safe_load(written)
    if type(value) is not type(before):
        kinds = f"{type(before).__name__}, not {type(value).__name__}"
        raise SettingsError(f"`{path}` is a {kinds}", where=where)
    key, node = _locate(text, path)
    text_of = json.dumps(value, ensure_ascii=False)
    if _is_block(node):
        lines = text.splitlines(keepends=True)
        start, indent = key.start_mark.line, key.start_mark.column
        lines[start : _value_end(lines, start, indent)] = [f"{' ' * indent}{key.value}: {text_of}\n"]
        return "".join(lines)
    return text[: node.start_mark.index] + text_of + text[node.end_mark.index :]


def _locate(text: str, path: str) -> tuple[yaml.Node, yaml.Node]:
    """The YAML nodes of key and value at a path."""
    node = yaml.compose(text)
    key: yaml.Node = node
    for step in path.split("."):
        key, node = next((key, value) for key, value in node.value if key.value == step)
    return key, node


def _is_block(node: yaml.Node) -> bool:
    """Whether the value is a block that ends where the indentation decreases."""
    if isinstance(node, yaml.ScalarNode):
        return node.style == "|"
    return isinstance(node, yaml.CollectionNode) and node.flow_style is False


def _value_end(lines: list[str], start: int, indent: int) -> int:
    """The line after a value, which includes all lines that are indented further."""
    end = start + 1
    while end < len(lines) and lines[end].strip() and len(lines[end]) - len(lines[end].lstrip()) > indent:
        end += 1
    return end


def _top_kustomization(values: dict[str, Any]) -> str:
    chosen = [name for name, path in COMPONENTS.items() if manifests.value(values, path)]
    text = yaml_text.comment(ABOUT) + f"{KUSTOMIZATION}resources:\n  - base\n"
    text += "components:\n" if chosen else "components: []\n"
    text += "".join(f"  - components/{name}\n" for name in chosen)
    others = [name for name in COMPONENTS if name not in chosen]
    if others:
        text += yaml_text.comment(ABOUT_COMPONENTS)
        text += "".join(f"#   components/{name}: {COMPONENT_SUMMARIES[name]}\n" for name in others)
    return text


def _component(name: str, texts: dict[str, str]) -> Iterator[RenderedFile]:
    listed = "".join(f"  - {path}\n" for path in texts)
    folder = f"components/{name}"
    yield RenderedFile(
        f"{folder}/kustomization.yaml",
        yaml_text.comment(COMPONENT_SUMMARIES[name]) + f"{COMPONENT}resources:\n{listed}",
    )
    yield from (RenderedFile(f"{folder}/{path}", text) for path, text in texts.items())


def _monitoring(
    settings: config.Settings, values: dict[str, Any], manifest_facts: dict[str, str]
) -> Iterator[RenderedFile]:
    texts = {
        "monitors.yaml": manifests.fill_manifest(
            manifests.read_manifest("prometheus-operator/monitors.yaml"), values, manifest_facts
        )
    }
    head = manifests.read_manifest("prometheus-operator/rules.yaml")
    for name, spec in rule_objects(settings).items():
        texts[f"rules-{name}.yaml"] = (
            manifests.fill_manifest(head, values, {**manifest_facts, "rules.name": name}) + spec
        )
    return _component("prometheus-operator", texts)


def _dashboards(
    settings: config.Settings, values: dict[str, Any], manifest_facts: dict[str, str]
) -> Iterator[RenderedFile]:
    head = manifests.read_manifest("dashboards/dashboard.yaml")
    texts = {
        f"{name}.yaml": manifests.fill_manifest(head, values, {**manifest_facts, "dashboard.name": name})
        + f"  {name}.json: |\n    {text}\n"
        for name, text in dashboard_objects(settings).items()
    }
    return _component("dashboards", texts)
