"""The tools that judge what is rendered: kubectl, helm, kubernetes-validate, Grafana's SDK, linters.

`scripts/render-tools` fetches them into a cache outside the tree; the first test that needs one runs it. A tool that
cannot be had skips the test by name, or fails it where REQUIRE_SERVERS=1.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from tests.support.paths import ROOT
from watchkeeper.render.tree import RenderedFile

FETCH_SECONDS = 300
FREE = frozenset({"labels", "matchLabels", "annotations", "params", "metadata"})


@cache
def folder() -> Path:
    """The cache, filled as far as this machine can."""
    script = ROOT / "scripts" / "render-tools"
    where = Path(subprocess.run([script, "--where"], capture_output=True, text=True, check=True).stdout.strip())
    parts = [where / "bin" / name for name in ("kubectl", "helm", "hadolint", "shellcheck")]
    parts += [where / part / ".complete" for part in ("python", "node")]
    if not all(part.exists() for part in parts):
        subprocess.run([script], capture_output=True, check=False, timeout=FETCH_SECONDS)
    return where


def program(name: str) -> Path:
    return _there(folder() / "bin" / name, name)


def schemas() -> Path:
    """node_modules with validators of custom resources; run them with `node`."""
    return _there(folder() / "node" / ".complete", "schemas of custom resources").parent / "node_modules"


@contextmanager
def package(name: str) -> Iterator[ModuleType]:
    """A Python package of the cache, importable while the block runs: its dependencies are not ours."""
    _there(folder() / "python" / ".complete", name)
    where = str(folder() / "python")
    sys.path.append(where)
    try:
        yield importlib.import_module(name)
    finally:
        sys.path.remove(where)


def _there(path: Path, what: str) -> Path:
    if path.exists():
        return path
    why = f"{what} is not there and could not be fetched. `scripts/render-tools` gets it from this machine's indexes"
    if os.environ.get("REQUIRE_SERVERS") == "1":
        pytest.fail(f"{why} (REQUIRE_SERVERS=1)", pytrace=False)
    pytest.skip(why)


def write(files: Iterable[RenderedFile], where: Path) -> Path:
    """The files as `cli.hub.render` would put them there."""
    for file in files:
        path = where / file.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(file.text)
        path.chmod(0o755 if file.is_executable else 0o644)
    return where


def run(command: Sequence[str | Path], **options: Any) -> str:
    """The output of a tool that must succeed; its complaint is the test's."""
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False, **options)
    assert done.returncode == 0, f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}"
    return done.stdout


def check_custom(manifests: Sequence[dict[str, Any]], package: str, where: Path) -> None:
    """Custom resources against the types of their operator, a folder of npm's @kubernetes-models; `where` is scratch.

    The validators pass over keys that they do not know, so the names are looked for in the types as well.
    """
    folder = schemas() / "@kubernetes-models" / package
    kinds = sorted({manifest["kind"] for manifest in manifests})
    imports = "".join(f"import {{{kind}}} from '{folder}/{kind}.js';\n" for kind in kinds)
    (where / "objects.json").write_text(json.dumps(manifests))
    (where / "check.mjs").write_text(
        f"{imports}import {{readFileSync}} from 'node:fs';\nconst kinds = {{{', '.join(kinds)}}};\n"
        f"for (const one of JSON.parse(readFileSync('{where}/objects.json'))) new kinds[one.kind](one).validate();\n"
    )
    run(["node", where / "check.mjs"])
    # Operators take selectors and the autoscaler's behaviour over from Kubernetes as they are.
    theirs = ("kubernetes-models/autoscaling/v2/*.d.ts", "@kubernetes-models/apimachinery/**/LabelSelector.d.ts")
    types = [*folder.glob("*.d.ts"), *(path for pattern in theirs for path in schemas().glob(pattern))]
    fields = set(re.findall(r'"?(\w+)"?\??:', "".join(path.read_text() for path in types)))
    unknown = {key for manifest in manifests for key in _keys(manifest["spec"])} - fields
    assert not unknown, f"keys that no type has: {sorted(unknown)}"


def _keys(value: Any) -> Iterator[str]:
    """Keys that the type gives; those of free mappings are anybody's."""
    if isinstance(value, list):
        for item in value:
            yield from _keys(item)
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield key
            yield from _keys(inner) if key not in FREE else ()


def objects(text: str) -> dict[str, dict[str, Any]]:
    """The Kubernetes objects of a YAML stream by kind and name; two of one name would be a mistake."""
    manifests = [manifest for manifest in yaml.load_all(text, Loader=yaml.CSafeLoader) if manifest]
    named = {f"{manifest['kind']}/{manifest['metadata']['name']}": manifest for manifest in manifests}
    assert len(named) == len(manifests)
    return named
