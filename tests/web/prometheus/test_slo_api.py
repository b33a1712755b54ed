"""Error budgets and reloads over a real socket."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from dataclasses import replace

import pytest
from click.testing import CliRunner

from tests.support.slo_file import FILE
from tests.support.web.tokens import SECRETS, TOKENS
from tests.web.kept_services import START, GivenRules
from tests.web.running import Site, serving
from tests.web.small_hub import SmallHub
from watchkeeper.cli import processes
from watchkeeper.cli.hub import rules as rules_command
from watchkeeper.cli.hub import slo as slo_command
from watchkeeper.model.labels import Labels
from watchkeeper.rules import slo
from watchkeeper.web.auth.auth import Role

CHAT = {"slo": "chat-availability", "cluster": "main", "model_name": "chat"}
BROKEN = ("rules/a.yaml:3: alert Hot: `expr` is missing", "rules/b.yaml:1: not YAML: oops")


@pytest.fixture
def site() -> Iterator[Site]:
    hub = SmallHub(rules=GivenRules(slos=slo.read_slos(FILE, where="slo.yaml")))
    hub.readings.recorded = {
        Labels({**CHAT, "__name__": slo.BUDGET}): 0.75,
        Labels({**CHAT, "__name__": f"{slo.RATIO}5m"}): 0.001,
    }
    with serving(hub) as running:
        yield running


def test_unknown_values_of_a_budget_are_null(site: Site) -> None:
    [slo_status] = site.ask("/api/slos").json["slos"]
    assert (slo_status["name"], slo_status["labels"], slo_status["state"]) == (
        CHAT["slo"],
        {"cluster": "main", "model_name": "chat"},
        "ok",
    )
    assert (slo_status["indicator"], slo_status["left"], slo_status["covered"], slo_status["incidents"]) == (
        0.999,
        0.75,
        "15d",
        [],
    )
    assert [burn["rate"] for burn in slo_status["burn_rates"]] == [None] * 4


def test_the_command_shows_unknown_values(site: Site) -> None:
    result = CliRunner().invoke(slo_command.command, ["--hub", site.url])
    assert result.exit_code == 0, result.output
    line = next(line for line in result.output.splitlines() if line.startswith("chat-availability"))
    assert line.split()[:9] == ["chat-availability", "main,", "chat", "99.900", "%", "99.000", "%", "75.0", "%"]
    assert line.split()[9:13] == ["unknown"] * 4
    assert "the samples cover 15d of its window of 28d" in result.output


def test_a_reload_answers_with_the_active_rules(site: Site) -> None:
    assert site.ask("/-/reload", method="POST", body={}).json["rules"] == 114
    result = CliRunner().invoke(rules_command.command, ["reload", "--hub", site.url])
    assert (result.exit_code, result.output) == (0, "114 rules in 20 groups are active\n")


def test_a_failed_reload_lists_every_problem_and_the_status_shows_it(site: Site) -> None:
    site.hub.rules.last_reload = replace(site.hub.rules.last_reload, problems=BROKEN)
    reply = site.ask("/-/reload", method="POST", body={})
    assert (reply.status, reply.json["errors"], reply.json["status"]) == (422, list(BROKEN), 422)
    status = site.ask("/api/status").json["rules"]
    assert (status["is_successful"], status["problems"], status["in_force_since"][:19]) == (
        False,
        list(BROKEN),
        START.isoformat()[:19],
    )
    assert site.ask("/api/v1/status/runtimeinfo").json["data"]["reloadConfigSuccess"] is False
    result = CliRunner().invoke(rules_command.command, ["reload", "--hub", site.url])
    assert result.exit_code == 1
    assert "rules/a.yaml:3: alert Hot" in str(result.exception)


def test_only_an_admin_may_reload() -> None:
    with serving(SmallHub(), TOKENS) as site:
        for role, status in ((Role.OPERATOR, 403), (Role.ADMIN, 200)):
            sent = {"Authorization": f"Bearer {SECRETS[role]}"}
            assert site.ask("/-/reload", method="POST", body={}, headers=sent).status == status


def test_a_signal_asks_for_a_reload() -> None:
    async def story() -> None:
        is_requested = asyncio.Event()
        processes.on_hangup(is_requested.set)
        os.kill(os.getpid(), signal.SIGHUP)
        await asyncio.wait_for(is_requested.wait(), 60)

    asyncio.run(story())
