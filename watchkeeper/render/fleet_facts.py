"""Facts that several targets need: nodes and teams of the inventory, scrape addresses, rules.

Read with the same functions as in the hub, so that both agree.
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
from watchkeeper.rules import reload, series_read, slo


@dataclass(frozen=True, slots=True)
class NodeFact:
    """A node that the inventory lists; `expected_gpus` None is unknown."""

    name: str
    expected_gpus: int | None


@dataclass(frozen=True, slots=True)
class RuleText:
    """A rule file of the hub; `name` is unique."""

    name: str
    text: str


def inventory(settings: config.Settings) -> inventory_file.InventoryFile:
    path = settings.fleet.inventory
    return inventory_file.read(Path(path)) if path is not None else inventory_file.InventoryFile()


def nodes(settings: config.Settings) -> list[NodeFact]:
    """The nodes of the inventory in its order, without those that have no GPU."""
    inventory_rows = inventory(settings)
    names = dict.fromkeys(name for row in inventory_rows.nodes for name in row.names)
    facts = []
    for name in names:
        counts = (row.expected_gpus for row in inventory_rows.matching_rows(settings.fleet.cluster, name))
        facts.append(NodeFact(name, next((count for count in counts if count is not None), None)))
    return [fact for fact in facts if fact.expected_gpus != 0]


def scrape_addresses(settings: config.Settings) -> list[str]:
    """Fixed scrape addresses: `render.targets` expanded, and the nodes of the inventory."""
    addresses: list[str] = []
    for text in settings.render.targets:
        try:
            addresses += hostlist.expand(text)
        except hostlist.BadHostlist as error:
            raise SettingsError(str(error), where="render.targets") from error
    port = settings.fleet.slurm_agent_port or agent_server.PORT
    addresses += [f"{node.name}:{port}" for node in nodes(settings)]
    return list(dict.fromkeys(addresses))


def rule_texts(settings: config.Settings) -> list[RuleText]:
    """The rule files that the hub evaluates, checked; SLOs are included as rules."""
    sources = rule_loops.rule_sources(settings)
    book = reload.read_sources(sources)
    names: dict[str, int] = {}
    texts = [RuleText(_unique_name(path.stem, names), path.read_text(encoding="utf-8")) for path in sources.files]
    if sources.slos is not None and not sources.is_rendered:
        text = slo.render_rules(list(book.slos), source=sources.slos.name)
        texts.append(RuleText(_unique_name(sources.slos.stem, names), text))
    return texts


def rule_series(settings: config.Settings) -> series_read.SeriesRead:
    """The series that these rules read."""
    return series_read.of_rules(reload.read_sources(rule_loops.rule_sources(settings)).rules)


def _unique_name(stem: str, names: dict[str, int]) -> str:
    names[stem] = names.get(stem, 0) + 1
    return stem if names[stem] == 1 else f"{stem}-{names[stem]}"
