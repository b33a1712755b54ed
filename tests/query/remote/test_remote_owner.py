"""Rules that we own over samples that a server keeps: evaluated here, and written back there."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.support import engines
from tests.support.group_evaluation import evaluate_group
from watchkeeper.kit import clock
from watchkeeper.model.alerts import AlertState
from watchkeeper.model.labels import Labels
from watchkeeper.model.samples import Sample
from watchkeeper.query.prometheus import PrometheusEngine
from watchkeeper.rules import evaluate, rulefile
from watchkeeper.store.interfaces import Appended

pytestmark = pytest.mark.servers
BEGIN = datetime(2024, 1, 15, tzinfo=UTC)
RULE_FILE = """
groups:
  - name: heat
    rules:
      - {record: "node:temp:max", expr: max by (Hostname) (temp)}
      - {alert: Hot, expr: temp > 90, for: 30s, labels: {severity: critical}}
"""


def at(seconds: int) -> datetime:
    return datetime.fromtimestamp(BEGIN.timestamp() + seconds, UTC)


def evaluated(engine: PrometheusEngine, rules: Path, settle: engines.Settle) -> list[tuple[int, AlertState]]:
    """Evaluate each 15 s what was scraped a second before; GPU 1 is hot from 30 s to 120 s."""
    [group] = rulefile.load_rules([rules]).groups
    state: evaluate.RuleStates = {}
    changes: list[tuple[int, AlertState]] = []
    for seconds in range(0, 180, 15):
        values = {"0": 60.0, "1": 95.0 if 30 <= seconds < 120 else 70.0}
        scraped_ms = clock.to_ms(at(seconds)) - 1000
        named = {gpu: Labels({"__name__": "temp", "Hostname": "n1", "gpu": gpu}) for gpu in values}
        assert engine.appender.append([Sample(named[gpu], scraped_ms, values[gpu]) for gpu in values]) == Appended(
            2, {}
        )
        settle()
        result = evaluate_group(group, engine, state, now=at(seconds))
        state = result.state
        assert engine.appender.append(result.samples).dropped == {}
        changes += [(seconds, alert.state) for alert in result.changes]
    settle()
    return changes


@pytest.mark.parametrize("name", ["prometheus", "victoria-metrics"])
def test_our_rules_fire_over_a_server_and_their_series_are_written_back(name: str, tmp_path: Path) -> None:
    rules = tmp_path / "rules.yml"
    rules.write_text(RULE_FILE)
    with engines.started(name, tmp_path) as server:
        changes = evaluated(server.engine, rules, server.settle)
        assert changes == [(60, AlertState.FIRING), (120, AlertState.RESOLVED)]
        firing = 'ALERTS{alertname="Hot", alertstate="firing", gpu="1"}'
        assert list(server.engine.instant(firing, clock.to_ms(at(110))).latest().values()) == [1.0]
        assert server.engine.instant(firing, clock.to_ms(at(125))).latest() == {}
        recorded = server.engine.instant("node:temp:max", clock.to_ms(at(100))).latest()
    assert recorded == {Labels({"__name__": "node:temp:max", "Hostname": "n1"}): 95.0}
