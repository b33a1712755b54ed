"""Pages and blocks that are written from the code, so that they cannot disagree with it.

`make golden` runs this as a program; `test_docs` compares what it would write with what is committed.
"""

from __future__ import annotations

import ast
import copy
import dataclasses
import json
import re
import sys
import types
import typing
from collections.abc import Callable, Iterator
from enum import StrEnum
from pathlib import Path
from typing import Any

import click
import yaml

from tests.house import coverage, generate_api, generate_xid_rules
from tests.house.tree import PACKAGE, Source, sources, summary
from tests.support.numbers import definitions
from tests.support.paths import ROOT
from watchkeeper.agent import diag_page
from watchkeeper.catalogue import causes
from watchkeeper.cli import main as cli_main
from watchkeeper.clusters import cluster_series
from watchkeeper.config import settings
from watchkeeper.drill.consistency import judging
from watchkeeper.kit import own_metrics
from watchkeeper.rules import slo
from watchkeeper.web import openapi

REFERENCE = ROOT / "docs" / "reference"
RULE_FILES = PACKAGE / "packs" / "rules"
ADDED_SERIES = {
    "watchkeeper_node_info": "1 for each expected node; its pool and failure domains such as rack and leaf are labels",
    "watchkeeper_node_expected_gpus": "GPUs that the inventory expects in a node; absent where that is unknown",
    "watchkeeper_gpu_workload_info": "1 for each GPU that a workload holds; workload, namespace and team are labels",
    "watchkeeper_gpu_workload_share": "part of a shared GPU's utilisation that is this workload's; the parts sum to 1",
    "watchkeeper_gpu_attribution": "workloads that hold the GPU; `reason` says why there are none",
    "watchkeeper_scheduler_node_state": "1 for each GPU node of Slurm, with its state in sinfo's own word",
    "watchkeeper_hub_alert_kept_since_seconds": "since when an alert is silent that `keep_firing_for` keeps",
    "watchkeeper_fleet_moved_gpus_total": "GPUs that turned up on another node than before",
    **diag_page.FAMILIES,
    **cluster_series.HELP,
    "watchkeeper_fabric_sweep_ok": "1 while the last sweep of the fabric was whole, else 0",
    "watchkeeper_fabric_sweep_seconds": "duration of the last sweep of the fabric",
    "watchkeeper_fabric_ports": "ports of the fabric that the last sweep found",
    "watchkeeper_fabric_switch_up": "1 for each switch that the last sweep found, 0 for one that is gone",
    "watchkeeper_fabric_port_state_id": "logical state of a port, as node_exporter numbers it",
    "watchkeeper_fabric_port_rate_bytes_per_second": "what the link of a port may carry",
    "watchkeeper_fabric_port_slow": "1 for a link that is slower than its ends allow",
    "watchkeeper_fabric_port_data_bytes_total": "traffic of a port, by direction",
    "watchkeeper_fabric_port_errors_total": "errors of a port, by counter",
    "watchkeeper_fabric_port_counter_at_maximum": "1 for a counter that has stuck at its maximum",
}
HEAD = "# {title}\n\n{law} Written by `make golden`; do not edit.\n"


def cli_page() -> str:
    parts = [HEAD.format(title="Commands", law="What a person types, as `--help` prints it.")]
    root = commands()["watchkeeper"]
    outer = click.Context(root, **root.context_settings, terminal_width=100)
    for name, command in sorted(commands().items()):
        # click keeps the help option of the first context that asked; what ran before must not change a page.
        fresh = copy.copy(command)
        fresh._help_option = None
        context = click.Context(fresh, info_name=name, help_option_names=outer.help_option_names, terminal_width=100)
        context.show_default = outer.show_default
        parts.append(f"## {name}\n\n```\n{fresh.get_help(context)}\n```\n")
    return "\n".join(parts)


def commands() -> dict[str, click.Command]:
    """Every command by its full name, groups before what is in them."""
    root = next(value for value in vars(cli_main).values() if isinstance(value, click.Group))

    def walk(name: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
        yield name, command
        if isinstance(command, click.Group):
            context = click.Context(command, info_name=name)
            for inner in command.list_commands(context):
                subcommand = command.get_command(context, inner)
                if subcommand is not None and not subcommand.hidden:
                    yield from walk(f"{name} {inner}", subcommand)

    return dict(walk("watchkeeper", root))


def settings_page() -> str:
    law = "One TOML file; every key is optional. Durations are Prometheus durations such as `15s` or `1h30m`."
    parts = [HEAD.format(title="Settings", law=law)]
    for section, kind in typing.get_type_hints(settings.Settings).items():
        rows = [
            f"| `{field.name}` | {_type_words(typing.get_type_hints(kind)[field.name])} "
            f"| `{_as_toml(field.default)}` | {field.metadata['help']} |"
            for field in dataclasses.fields(kind)
        ]
        table = "\n".join(["| key | type | default | meaning |", "|---|---|---|---|", *rows])
        parts.append(f"## [{section}]\n\n{summary(kind.__doc__ or '')}.\n\n{table}\n")
    return "\n".join(parts)


def _type_words(hint: Any) -> str:
    if isinstance(hint, types.UnionType):
        return f"{_type_words(hint.__args__[0])}, optional"
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        return " or ".join(f"`{member}`" for member in hint)
    if any(dataclasses.is_dataclass(part) for part in typing.get_args(hint)):
        return "list of tables"
    return {str: "text", int: "whole number", bool: "true or false"}.get(hint, "list of texts")


def _as_toml(value: Any) -> str:
    return "none" if value is None else json.dumps(value, ensure_ascii=False)


def metrics_page() -> str:
    law = "Metrics of the hub and the agent, and series that the hub adds."
    own = [f"| `{name}` | {kind} | {help.rstrip('.')} |" for name, kind, help in sorted(declared_metrics())]
    added = [f"| `{name}` | {meaning} |" for name, meaning in sorted(ADDED_SERIES.items())]
    parts = [
        HEAD.format(title="Own metrics", law=law),
        "\n".join(
            [
                "## Exposed on `/metrics` of the hub and in the metrics file of an agent\n",
                "| name | type | meaning |",
                "|---|---|---|",
                *own,
                "",
            ]
        ),
        "\n".join(
            [
                "## Deprecated names\n",
                "Each is still exposed for one release. Use the new name in your rules and dashboards.\n",
                "| deprecated | use |",
                "|---|---|",
                *(f"| `{old}` | `{new}` |" for new, old in sorted(own_metrics.DEPRECATED_NAMES.items())),
                "",
            ]
        ),
        "\n".join(["## Added to the store, to join in PromQL\n", "| name | meaning |", "|---|---|", *added, ""]),
    ]
    return "\n".join(parts)


def declared_metrics() -> set[tuple[str, str, str]]:
    """Name, type and help of every metric that is declared on a registry, found in the source."""
    return {
        (_text(call.args[0], source), kind, _text(call.args[1], source))
        for source in sources(PACKAGE)
        for call in ast.walk(source.syntax)
        if isinstance(call, ast.Call)
        and (kind := ast.unparse(call.func).rpartition(".")[2]) in ("counter", "gauge")
        and len(call.args) == 2
        and isinstance(call.args[0], ast.Constant | ast.JoinedStr)
    }


def _text(node: ast.expr, source: Source) -> str:
    """A text, or an f-string over names that the same module sets to texts."""
    if not isinstance(node, ast.JoinedStr):
        return str(ast.literal_eval(node))
    names = {
        ast.unparse(assignment.targets[0]): assignment.value.value
        for assignment in ast.walk(source.syntax)
        if isinstance(assignment, ast.Assign) and isinstance(assignment.value, ast.Constant)
    }
    return "".join(
        str(part.value) if isinstance(part, ast.Constant) else str(names[ast.unparse(typing.cast(Any, part).value)])
        for part in node.values
    )


def alerts_page() -> str:
    law = "The rules that are shipped, in Prometheus' own rule format (`watchkeeper/packs/rules`)."
    parts = [HEAD.format(title="Alerts", law=law)]
    by_name: dict[str, list[str]] = {}
    for file, rule in shipped_alerts():
        annotations, labels = rule.get("annotations", {}), rule.get("labels", {})
        facts = f"{labels.get('severity')}, after {rule.get('for', '0s')}, from `{file.name}`"
        lines = [f"{annotations.get('summary')} ({facts})", f"```promql\n{str(rule['expr']).strip()}\n```\n"]
        by_name.setdefault(rule["alert"], []).append("\n\n".join(lines))
    return "\n".join([*parts, *(f"## {name}\n\n" + "\n".join(by_name[name]) for name in sorted(by_name))])


def shipped_alerts() -> list[tuple[Path, dict[str, Any]]]:
    alerts = []
    for path in sorted(RULE_FILES.glob("*.y*ml")):
        for group in yaml.load(path.read_text(), Loader=yaml.CSafeLoader)["groups"]:
            alerts += [(path, rule) for rule in group["rules"] if "alert" in rule]
    return alerts


def causes_page() -> str:
    law = "Everything that a finding, an incident or `watchkeeper doctor` may name as a cause (`packs/causes.csv`)."
    rows = [
        f"| [{row.cause}](../runbooks/{row.runbook}.md) | {row.severity} | {row.scope} | {row.why} | {row.next_step} |"
        for row in sorted(causes.all_causes(), key=lambda row: (row.family, row.cause))
    ]
    words = "`{place}` and `{node}` stand for where it happened. Causes of one family become one incident at one place."
    table = "\n".join(["| cause | severity | scope | what is so | next step |", "|---|---|---|---|---|", *rows])
    return f"{HEAD.format(title='Causes', law=law)}\n{words}\n\n{table}\n"


def api_page() -> str:
    """Every endpoint, from the OpenAPI document of the hub."""
    document = generate_api.document()
    by_tag: dict[str, list[str]] = {}
    for path, ways in document["paths"].items():
        # GET and POST of one path become one row if they have the same description.
        alike: dict[str, list[str]] = {}
        for method, operation in ways.items():
            alike.setdefault(f"{_tag(operation)}\n{_api_row(operation)}", []).append(method.upper())
        for description, methods in alike.items():
            tag, _, rest = description.partition("\n")
            by_tag.setdefault(tag, []).append(f"| `{path}` | {', '.join(methods)} | {rest}")
    head = "\n| Path | Methods | Role | Parameters | Description |\n|---|---|---|---|---|\n"
    pages = ", ".join(re.findall(r"^\| (`[^`]+`)", "\n".join(by_tag.pop("console")), re.MULTILINE))
    parts = [f"## {tag}\n{head}" + "\n".join(rows) + "\n" for tag, rows in sorted(by_tag.items())]
    parts.append(f"## console\n\nPages, which need no login because they contain no data: {pages}.\n")
    law = f"{document['info']['description']} A body is a JSON object with the listed fields."
    more = (
        f"Version {document['info']['version']}. For programs, `GET {openapi.PATH}` returns the same as OpenAPI 3.1 "
        "with the types of all responses. Examples: [the API](../howto/api.md).\n"
    )
    return "\n".join([HEAD.format(title="HTTP API", law=law), more, *parts])


def _tag(operation: dict[str, Any]) -> str:
    return str(operation["tags"][0])


def _api_row(operation: dict[str, Any]) -> str:
    parameters = [_api_parameter(parameter) for parameter in operation["parameters"] if parameter["in"] == "query"]
    body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
    fields = [f"`{name}`" for name in body.get("properties", ())]
    named = body.get("$ref", "").rpartition("/")[2]
    arguments = "<br>".join(
        [*parameters, *([f"body: {', '.join(fields)}"] if fields else []), *([f"body: {named}"] * bool(named))]
    )
    changes = ", changes" if operation["x-watchkeeper-changes"] else ""
    return f"{operation['x-watchkeeper-role']}{changes} | {arguments} | {operation['summary']} |"


def _api_parameter(parameter: dict[str, Any]) -> str:
    return f"`{parameter['name']}`{' (required)' if parameter['required'] else ''}: {parameter['description']}"


def modules_page() -> str:
    """A section for each folder of watchkeeper/ with its law, and each module with its first sentence."""
    law = "Each module, by the first sentence of its docstring. Start with [the map](../../ARCHITECTURE.md)."
    by_folder: dict[str, list[Source]] = {}
    for source in sources(PACKAGE):
        by_folder.setdefault(source.path.parent.relative_to(ROOT).as_posix(), []).append(source)
    parts = [_folder(name, modules) for name, modules in sorted(by_folder.items())]
    return "\n".join([HEAD.format(title="Modules", law=law), *parts])


def consistency_page() -> str:
    law = "What `watchkeeper drill --consistency` requires of all answers of a hub ([how](../howto/consistency.md))."
    parts = [HEAD.format(title="Invariants", law=law)]
    for module in judging.SUBJECTS:
        subject = module.__name__.rpartition(".")[2]
        own = [invariant for invariant in judging.INVARIANTS if invariant.subject == subject]
        rows = [f"| `{invariant.id}` | {invariant.sentence} |" for invariant in own]
        parts.append(
            "\n".join([f"## {subject.replace('_', ' ')}", "", "| Invariant | What must hold |", "|---|---|", *rows, ""])
        )
    return "\n".join(parts)


def _folder(name: str, modules: list[Source]) -> str:
    docstrings = {source.path.name: ast.get_docstring(source.syntax) or "" for source in modules}
    law = docstrings.pop("__init__.py", "")
    rows = [f"- `{module}`: {summary(docstring)}" for module, docstring in sorted(docstrings.items())]
    return "\n".join([f"## {name}/", "", law, "", *rows, *([""] if rows else [])])


def coverage_page() -> str:
    return coverage.page(HEAD)


def definitions_page() -> str:
    return definitions.page(HEAD)


def slo_rules() -> str:
    source = PACKAGE / "packs" / "slo.yaml"
    return slo.render_rules(slo.read_slos(source.read_text(), where="packs/slo.yaml"), source="packs/slo.yaml")


WRITTEN: dict[Path, Callable[[], str]] = {
    RULE_FILES / "xid.yaml": generate_xid_rules.xid_rules,
    REFERENCE / "settings.md": settings_page,
    REFERENCE / "metrics.md": metrics_page,
    REFERENCE / "alerts.md": alerts_page,
    REFERENCE / "cli.md": cli_page,
    REFERENCE / "causes.md": causes_page,
    REFERENCE / "api.md": api_page,
    REFERENCE / "consistency.md": consistency_page,
    REFERENCE / "modules.md": modules_page,
    REFERENCE / "coverage.md": coverage_page,
    REFERENCE / "definitions.md": definitions_page,
    RULE_FILES / "slo.yaml": slo_rules,
    PACKAGE / "client" / "answers.py": generate_api.python_answers,
    ROOT / "console" / "src" / "lib" / "types.ts": generate_api.console_types,
}


if __name__ == "__main__":
    for path, write in WRITTEN.items():
        path.write_text(write())
        sys.stdout.write(f"wrote {path.relative_to(ROOT)}\n")
