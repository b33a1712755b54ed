"""Facts that several targets need: nodes and teams of the inventory, scrape addresses, rules.

Read with the same functions as in the hub, so that both agree.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from watchkeeper.agent import agent_server
from watchkeeper.clusters import inventory_file
from watchkeeper.config import settings as config
from watchkeeper.errors import SettingsError
from watchkeeper.hub import rule_loops
from watchkeeper.readers.clusters import hostlist
from watchkeeper.rules import reload, series_read, slo


def inventory(settings: config.Settings) -> inventory_file.InventoryFile:
    path = settings.fleet.inventory
    return inventory_file.read(Path(path)) if path is not None else inventory_file.InventoryFile()


def expected_gpus(settings: config.Settings) -> dict[str, int | None]:
    """The GPUs of each node of the inventory, in its order; None is unknown. Nodes without GPUs are omitted."""
    inventory_rows, counts = inventory(settings), dict[str, int | None]()
    for name in dict.fromkeys(name for row in inventory_rows.nodes for name in row.names):
        listed = (row.expected_gpus for row in inventory_rows.matching_rows(settings.fleet.cluster, name))
        counts[name] = next((count for count in listed if count is not None), None)
    return {name: count for name, count in counts.items() if count != 0}


def scrape_addresses(settings: config.Settings) -> list[str]:
    """Fixed scrape addresses: `render.targets` expanded, and the nodes of the inventory."""
    addresses: list[str] = []
    for text in settings.render.targets:
        try:
            addresses += hostlist.expand(text)
        except hostlist.BadHostlist as error:
            raise SettingsError(str(error), where="render.targets") from error
    port = settings.fleet.slurm_agent_port or agent_server.PORT
    addresses += [f"{node}:{port}" for node in expected_gpus(settings)]
    return list(dict.fromkeys(addresses))


def rule_texts(settings: config.Settings) -> dict[str, str]:
    """The rule files that the hub evaluates by a unique name, checked; SLOs are included as rules."""
    sources = rule_loops.rule_sources(settings)
    book = reload.read_sources(sources)
    texts = [(path.stem, path.read_text(encoding="utf-8")) for path in sources.files]
    if sources.slos is not None and not sources.is_rendered:
        texts.append((sources.slos.stem, slo.render_rules(list(book.slos), source=sources.slos.name)))
    counts, rules = Counter[str](), {}
    for stem, text in texts:
        counts[stem] += 1
        rules[stem if counts[stem] == 1 else f"{stem}-{counts[stem]}"] = text
    return rules


def rule_series(settings: config.Settings) -> series_read.SeriesRead:
    return series_read.of_rules(reload.read_sources(rule_loops.rule_sources(settings)).rules)
