"""Kubernetes manifests, written once and rendered twice: with values in place, or as templates of a Helm chart.

A manifest of packs/kubernetes is YAML with marks. `fill_manifest` replaces them by values, `template_manifest` by Helm
templates, so that a chart and a kustomization with the same values give the same objects.

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
from typing import Any

from watchkeeper.catalogue import pack
from watchkeeper.errors import SettingsError

MARK = re.compile(r"@(?P<hash>sha256 )?(?P<path>[a-zA-Z][\w.]*)@")
BLOCK = re.compile(r"^(?P<indent> *)@(?P<path>[\w.]+)@\n", re.M)
CONDITION = re.compile(r"^ *#if (?P<path>[\w.]+)\n(?P<body>.*?)^ *#end\n", re.M | re.S)
EACH = re.compile(r"^(?P<indent> *)#each (?P<path>[\w.]+)\n", re.M)
# Facts that Helm provides.
HELM_FACTS = {"namespace": "{{ .Release.Namespace }}"}

Values = Mapping[str, Any]


def read_manifest(path: str, folder: str = "kubernetes") -> str:
    """One file of packs/kubernetes, or of another folder of manifests."""
    return pack.text_of(f"{folder}/{path}")


def value(values: Values, path: str) -> Any:
    """The value at a dotted path; SettingsError if there is none."""
    node: Any = values
    for step in path.split("."):
        if not isinstance(node, Mapping) or step not in node:
            raise SettingsError(f"unknown value `{path}`", where="render.values")
        node = node[step]
    return node


def fill_manifest(text: str, values: Values, facts: Mapping[str, str]) -> str:
    def write_entries(match: re.Match[str]) -> str:
        return "".join(f"{match['indent']}- {json.dumps(entry)}\n" for entry in value(values, match["path"]))

    def write_block(indent: str, path: str) -> str:
        # Every line is indented, also empty ones, as Helm's nindent does.
        return "".join(f"{indent}{line}\n" for line in value(values, path).rstrip("\n").split("\n"))

    def replace_mark(match: re.Match[str]) -> str:
        if match["path"] in facts:
            return facts[match["path"]]
        item = value(values, match["path"])
        if match["hash"]:
            return hashlib.sha256(item.encode()).hexdigest()
        return item if isinstance(item, str) else json.dumps(item)

    text = CONDITION.sub(lambda match: match["body"] if value(values, match["path"]) else "", text)
    return MARK.sub(replace_mark, _with_blocks(EACH.sub(write_entries, text), write_block))


def template_manifest(text: str, values: Values, facts: Mapping[str, str]) -> str:
    """The manifest as a template of a chart whose values.yaml has these values."""
    text = CONDITION.sub(lambda match: f"{{{{- if .Values.{match['path']} }}}}\n{match['body']}{{{{- end }}}}\n", text)
    text = EACH.sub(
        lambda match: (
            f"{match['indent']}{{{{- range .Values.{match['path']} }}}}\n"
            f"{match['indent']}- {{{{ . | toJson }}}}\n{match['indent']}{{{{- end }}}}\n"
        ),
        text,
    )

    def replace_mark(match: re.Match[str]) -> str:
        path = match["path"]
        if path in HELM_FACTS:
            return HELM_FACTS[path]
        if path in facts:
            return facts[path]
        if match["hash"]:
            return f"{{{{ .Values.{path} | sha256sum }}}}"
        return f"{{{{ .Values.{path}{'' if isinstance(value(values, path), str) else ' | toJson'} }}}}"

    block = "{{{{- .Values.{path} | nindent {indent} }}}}\n"
    return MARK.sub(replace_mark, _with_blocks(text, lambda indent, path: block.format(path=path, indent=len(indent))))


def _with_blocks(text: str, write: Callable[[str, str], str]) -> str:
    return BLOCK.sub(lambda match: write(match["indent"], match["path"]), text)
