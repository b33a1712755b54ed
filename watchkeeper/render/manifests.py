"""Kubernetes manifests, written once and rendered twice: with values in place, or as templates of a Helm chart.

A manifest of packs/kubernetes is YAML with a few marks. `filled` puts values in, `templated` turns each mark into
Helm's own language, so that a chart and a kustomization of the same values are the same objects.

    @agent.kernelLog@           a value of values.yaml; alone on its line: a text of several lines
    @sha256 hub.settings@       the hash of one
    #if agent.hostPID … #end    lines for a value that is neither empty nor false
    #each agent.options         one list entry for each
    @namespace@, @version@ …    facts, which a chart has as well, or gets from Helm
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from importlib import resources
from typing import Any

from watchkeeper.errors import SettingsError

MARK = re.compile(r"@(?P<hash>sha256 )?(?P<path>[a-zA-Z][\w.]*)@")
BLOCK = re.compile(r"^(?P<indent> *)@(?P<path>[\w.]+)@\n", re.M)
CONDITION = re.compile(r"^ *#if (?P<path>[\w.]+)\n(?P<body>.*?)^ *#end\n", re.M | re.S)
EACH = re.compile(r"^(?P<indent> *)#each (?P<path>[\w.]+)\n", re.M)
# Helm knows where it installs to.
HELM_FACTS = {"namespace": "{{ .Release.Namespace }}"}

Values = Mapping[str, Any]


def read_manifest(path: str, folder: str = "kubernetes") -> str:
    """One file of packs/kubernetes, or of another folder of manifests."""
    return resources.files("watchkeeper").joinpath("packs", folder, path).read_text(encoding="utf-8")


def value(values: Values, path: str) -> Any:
    """The value at a dotted path; SettingsError if there is none."""
    found: Any = values
    for step in path.split("."):
        if not isinstance(found, Mapping) or step not in found:
            raise SettingsError(f"there is no value `{path}`", where="render.values")
        found = found[step]
    return found


def fill_manifest(text: str, values: Values, facts: Mapping[str, str]) -> str:
    """The manifest with its values in place."""
    text = CONDITION.sub(lambda found: found["body"] if value(values, found["path"]) else "", text)
    text = EACH.sub(lambda found: _entries(found["indent"], value(values, found["path"])), text)

    def put(found: re.Match[str]) -> str:
        if found["path"] in facts:
            return facts[found["path"]]
        return _hashed(value(values, found["path"])) if found["hash"] else _plain(value(values, found["path"]))

    return MARK.sub(put, _with_blocks(text, lambda indent, path: _indented(value(values, path), indent)))


def template_manifest(text: str, values: Values, facts: Mapping[str, str]) -> str:
    """The manifest as a template of a chart whose values.yaml has these values."""
    text = CONDITION.sub(lambda found: f"{{{{- if .Values.{found['path']} }}}}\n{found['body']}{{{{- end }}}}\n", text)
    text = EACH.sub(
        lambda found: (
            f"{found['indent']}{{{{- range .Values.{found['path']} }}}}\n"
            f"{found['indent']}- {{{{ . | toJson }}}}\n{found['indent']}{{{{- end }}}}\n"
        ),
        text,
    )

    def put(found: re.Match[str]) -> str:
        path = found["path"]
        if path in HELM_FACTS:
            return HELM_FACTS[path]
        if path in facts:
            return facts[path]
        if found["hash"]:
            return f"{{{{ .Values.{path} | sha256sum }}}}"
        return f"{{{{ .Values.{path}{'' if isinstance(value(values, path), str) else ' | toJson'} }}}}"

    block = "{{{{- .Values.{path} | nindent {indent} }}}}\n"
    return MARK.sub(put, _with_blocks(text, lambda indent, path: block.format(path=path, indent=len(indent))))


def _with_blocks(text: str, write: Callable[[str, str], str]) -> str:
    return BLOCK.sub(lambda found: write(found["indent"], found["path"]), text)


def _entries(indent: str, entries: list[Any]) -> str:
    return "".join(f"{indent}- {json.dumps(entry)}\n" for entry in entries)


def _indented(text: str, indent: str) -> str:
    """As Helm's nindent does it: every line, empty ones too."""
    return "".join(f"{indent}{line}\n" for line in text.rstrip("\n").split("\n"))


def _plain(found: Any) -> str:
    return found if isinstance(found, str) else json.dumps(found)


def _hashed(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
