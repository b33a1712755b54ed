"""Explaining, correcting, counting and ranking over a real socket."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from click.testing import CliRunner

from tests.web import stories
from tests.web.running import Site, serving
from tests.web.small_hub import SmallHub
from watchkeeper.cli.fleet import accuracy as accuracy_command
from watchkeeper.cli.fleet import explain as explain_command
from watchkeeper.cli.fleet import incidents as incidents_command
from watchkeeper.cli.fleet import lemons as lemons_command
from watchkeeper.diagnose import explain_result
from watchkeeper.model.diagnosis import DiagnosisStep, Finding


@pytest.fixture
def hub() -> SmallHub:
    made = SmallHub()
    stories.lose_gpu(made)
    return made


@pytest.fixture
def site(hub: SmallHub) -> Iterator[Site]:
    with serving(hub) as running:
        yield running


def test_an_unknown_name_is_a_404(site: Site) -> None:
    for path in ("pod/ml/a", "node/nowhere", "job/nothing", "job/ml/nothing"):
        reply = site.ask(f"/api/explain/{path}")
        assert reply.status == 404
        assert " found" in reply.json["error"]


def test_a_node_is_explained(site: Site, hub: SmallHub) -> None:
    node = next(iter(hub.fleet.nodes()))
    answer = site.ask(f"/api/explain/node/{node.name}").json
    assert answer["explained"]["subject"] in answer["text"]
    result = CliRunner().invoke(explain_command.command, ["node", node.name, "--hub", site.url])
    assert answer["explained"]["headline"] in result.output


def test_the_explanation_of_a_node_names_the_incidents_of_the_node_list_that_of_its_rack_too(
    site: Site, hub: SmallHub
) -> None:
    site.call(stories.lose_rack, hub)
    lines = site.ask("/api/nodes").json["nodes"]
    assert any("INC-9" in line["incidents"] for line in lines)
    for line in lines:
        explained = site.ask(f"/api/explain/node/{line['name']}").json["explained"]
        assert {row["name"] for row in explained["lines"]} >= set(line["incidents"]), line["name"]


@pytest.mark.parametrize(("cause", "answer"), [("ib_link_degraded", "gpu_fell_off_bus"), ("node_down", "node_down")])
def test_an_incident_more_severe_than_the_finding_is_the_explanation(hub: SmallHub, cause: str, answer: str) -> None:
    incident = next(iter(hub.journal.kept.values()))
    explanation = explain_result.ExplainResult(
        "ml/a", "waits", cause, "because", (explain_result.ExplainLine("n1", "8 GPUs"),)
    )
    with_incident = explain_result.with_incidents(explanation, "ml/a", [(incident, None)])
    assert with_incident is not None
    assert (with_incident.cause, [line.name for line in with_incident.lines]) == (answer, ["INC-1", "n1"])
    assert explain_result.with_incidents(explanation, "ml/a", []) is explanation


def test_a_step_includes_its_command(hub: SmallHub) -> None:
    incident = next(iter(hub.journal.kept.values()))
    steps = (DiagnosisStep("Reboot it"), DiagnosisStep("See whether the card is on the bus", "lspci -d 10de:"))
    finding = Finding("gpu_fell_off_bus", 0.9, incident.place, "t", "w", (), steps)
    with_incident = explain_result.with_incidents(None, "n1", [(incident, finding)])
    assert with_incident is not None
    assert with_incident.steps == ("Reboot it", "See whether the card is on the bus   $ lspci -d 10de:")


def test_a_cause_is_corrected_counted_and_shown(site: Site, hub: SmallHub) -> None:
    id, kept = next(iter(hub.journal.kept.items()))
    result = CliRunner().invoke(
        incidents_command.command, ["cause", id, "pcie_degraded", "--why", "riser", "--hub", site.url]
    )
    assert result.output == f"{id}: pcie_degraded, not {kept.cause}.\n"
    (line,) = [row for row in site.ask("/api/accuracy").json["accuracy"] if row["cause"] == kept.cause]
    assert (line["judged"], line["right"], line["instead"]) == (1, 0, ["pcie_degraded"])
    shown = CliRunner().invoke(accuracy_command.command, ["--hub", site.url]).output
    assert "pcie_degraded" in shown
    assert f'watchkeeper_diagnose_judged_total{{cause="{kept.cause}",verdict="wrong"}} 1' in hub.metrics.render()


def test_an_unknown_cause_is_refused_with_the_causes_of_its_family(site: Site, hub: SmallHub) -> None:
    id = next(iter(hub.journal.kept))
    reply = site.ask(f"/api/incidents/{id}/cause", method="POST", body={"cause": "gremlins"})
    assert reply.status == 400
    assert "unknown cause `gremlins`" in reply.json["error"]


def test_lemons_are_ranked_and_wrong_days_refused(site: Site, hub: SmallHub) -> None:
    assert site.ask("/api/lemons?days=0").status == 400
    answer = site.ask("/api/lemons").json
    assert {"lemons", "left_out", "unseen", "since"} <= set(answer)
    assert answer["unmapped"]["nvlink"] == len(list(hub.fleet.nodes()))
    result = CliRunner().invoke(lemons_command.command, ["--hub", site.url])
    assert result.exit_code in (0, 1), result.output
    assert "Unmapped: " in result.output
