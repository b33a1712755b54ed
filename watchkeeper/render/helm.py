"""`render helm`: the manifests of `kubernetes` as a chart, with values.yaml, its schema and notes.

Each manifest is that of the kustomization with Helm templates in place of values, so `helm template` with the same
values gives the same objects, without the Namespace (`helm install --create-namespace` creates it).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

from watchkeeper.config import settings as config
from watchkeeper.render import kubernetes, manifests
from watchkeeper.render.tree import RenderedFile

CHART = "watchkeeper"
KINDS = {bool: "boolean", int: "integer", list: "array", dict: "object"}
# Maps with any keys: labels and resources.
FREE = frozenset({"nodeSelector", "labels", "requests", "limits"})
# Rules and dashboards contain braces that Helm would evaluate, so the chart copies them as files.
IN_A_RANGE = {"rules.name": "{{ $name }}", "dashboard.name": "{{ $name }}"}


def files(settings: config.Settings) -> list[RenderedFile]:
    values, facts = kubernetes.load_values(settings), kubernetes.facts(settings)

    def template(path: str) -> str:
        return manifests.template_manifest(manifests.read_manifest(path), values, facts | IN_A_RANGE)

    chart = {
        "Chart.yaml": manifests.fill_manifest(manifests.read_manifest("chart/Chart.yaml"), values, facts),
        "values.yaml": kubernetes.values_text(settings),
        "values.schema.json": json.dumps(schema(values), indent=2) + "\n",
        "templates/NOTES.txt": manifests.read_manifest("chart/NOTES.txt"),
        ".helmignore": ".rendered-*\n*.md\n",
        **{f"templates/{name}.yaml": template(f"base/{name}.yaml") for name in kubernetes.BASE},
        **{f"templates/{name}": text for name, text in _optional(template)},
        **{f"rules/{name}.yaml": spec for name, spec in kubernetes.rule_objects(settings).items()},
        **{f"dashboards/{name}.json": text for name, text in kubernetes.dashboard_objects(settings).items()},
    }
    secrets = manifests.fill_manifest(manifests.read_manifest("chart/secrets.sh"), values, facts)
    return [
        *(RenderedFile(f"{CHART}/{path}", text) for path, text in chart.items()),
        RenderedFile("secrets.sh", secrets, is_executable=True),
    ]


def schema(values: dict[str, Any]) -> dict[str, Any]:
    """A JSON schema of the values: unknown keys and wrong types are rejected."""
    return {"$schema": "https://json-schema.org/draft-07/schema#", **_kind_of(values)}


def _kind_of(value: Any, name: str = "") -> dict[str, Any]:
    kind = KINDS.get(type(value), "string")
    if kind != "object" or name in FREE:
        return {"type": kind}
    inner = {key: _kind_of(item, key) for key, item in value.items()}
    # Helm adds `global` to a subchart.
    extra = {} if name else {"global": {"type": "object"}}
    return {"type": "object", "additionalProperties": False, "properties": inner | extra}


def _optional(template: Callable[[str], str]) -> Iterator[tuple[str, str]]:
    monitors = template("prometheus-operator/monitors.yaml")
    yield "monitors.yaml", _when("prometheusOperator.enabled", monitors)
    for name in kubernetes.RBAC_COMPONENTS:
        text = manifests.template_manifest(kubernetes.rbac_manifest(name), {}, {})
        yield f"{name}.yaml", _when(f"{name}.enabled", text)
    rules = template("prometheus-operator/rules.yaml") + "{{ $text }}\n"
    yield "rules.yaml", _when("prometheusOperator.enabled", _for_each("rules/*.yaml", ".yaml", rules))
    board = template("dashboards/dashboard.yaml") + "  {{ $name }}.json: |\n    {{- $text | nindent 4 }}\n"
    yield "dashboards.yaml", _when("dashboards.enabled", _for_each("dashboards/*.json", ".json", board))


def _when(path: str, text: str) -> str:
    return f"{{{{- if .Values.{path} }}}}\n{text}{{{{- end }}}}\n"


def _for_each(pattern: str, ending: str, text: str) -> str:
    """One object for each file of the chart that matches; inside a range, `$` is the root context."""
    inside = text.replace("{{ .Values.", "{{ $.Values.").replace("{{ .Release.", "{{ $.Release.")
    return (
        f'{{{{- range $path, $_ := .Files.Glob "{pattern}" }}}}\n'
        f'{{{{- $name := trimSuffix "{ending}" (base $path) }}}}\n'
        f"{{{{- $text := $.Files.Get $path }}}}\n---\n{inside}{{{{- end }}}}\n"
    )
