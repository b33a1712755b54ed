"""What several targets ask of the settings: which nodes the inventory names, who the teams are, which rules hold.

Read once for each rendering, through the same readers as the hub's, so that both believe the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from watchkeeper.agent import agent_server
from watchkeeper.clusters import inventory_file
from watchkeeper.config import settings as config
from watchkeeper.errors import SettingsError
from watchkeeper.hub import rule_loops
from watchkeeper.readers.clusters import hostlist
from watchkeeper.rules import reload, replay, slo


@dataclass(frozen=True, slots=True)
class NodeFact:
    """A node that the inventory writes out; `expected_gpus` None is unknown."""

    name: str
    expected_gpus: int | None


@dataclass(frozen=True, slots=True)
class RuleText:
    """A rule file as the hub reads it; `name` is unique among them."""

    name: str
    text: str


def inventory(settings: config.Settings) -> inventory_file.InventoryFile:
    path = settings.fleet.inventory
    return inventory_file.read(Path(path)) if path is not None else inventory_file.InventoryFile()


def nodes(settings: config.Settings) -> list[NodeFact]:
    """Every node that the inventory names, in its order, except those that should have no GPU."""
    found = inventory(settings)
    names = dict.fromkeys(name for row in found.nodes for name in row.names)
    facts = []
    for name in names:
        said = (row.expected_gpus for row in found.rows_of(settings.fleet.cluster, name))
        facts.append(NodeFact(name, next((count for count in said if count is not None), None)))
    return [fact for fact in facts if fact.expected_gpus != 0]


def scrape_addresses(settings: config.Settings) -> list[str]:
    """What is scraped at a fixed address: `render.targets` written out, and the nodes of the inventory."""
    found: list[str] = []
    for text in settings.render.targets:
        try:
            found += hostlist.expand(text)
        except hostlist.BadHostlist as error:
            raise SettingsError(str(error), where="render.targets") from error
    port = settings.fleet.slurm_agent_port or agent_server.PORT
    found += [f"{node.name}:{port}" for node in nodes(settings)]
    return list(dict.fromkeys(found))


def rule_texts(settings: config.Settings) -> list[RuleText]:
    """The files of every rule that the hub would evaluate, checked; objectives stand in them as rules."""
    sources = rule_loops.rule_sources(settings)
    book = reload.read_sources(sources)
    names: dict[str, int] = {}
    found = [RuleText(_unique(path.stem, names), path.read_text(encoding="utf-8")) for path in sources.files]
    if sources.slos is not None and not sources.is_rendered:
        text = slo.render_rules(list(book.slos), source=sources.slos.name)
        found.append(RuleText(_unique(sources.slos.stem, names), text))
    return found


def rule_series(settings: config.Settings) -> frozenset[str]:
    """Names of the series that these rules read and do not make themselves."""
    return replay.metric_names(reload.read_sources(rule_loops.rule_sources(settings)).rules)[0]


def _unique(stem: str, names: dict[str, int]) -> str:
    names[stem] = names.get(stem, 0) + 1
    return stem if names[stem] == 1 else f"{stem}-{names[stem]}"
