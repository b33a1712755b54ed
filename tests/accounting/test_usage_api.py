"""Usage and cost over a real socket: from recorded hours, by the price book of the settings, asked by the commands."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tests.support.manual_clock import ManualClock
from tests.web.kept_services import START
from tests.web.running import Site, serving
from tests.web.small_hub import SmallHub
from watchkeeper.cli.accounting import cost, usage
from watchkeeper.kit import clock
from watchkeeper.model.labels import METRIC_NAME, Labels
from watchkeeper.model.samples import Sample
from watchkeeper.query import embedded
from watchkeeper.query.engine import QueryResult
from watchkeeper.store.head import head

HOURS = 72


class CountedEngine(embedded.EmbeddedEngine):
    """The real engine, with the number of times that it was asked for the hours of jobs."""

    questions = 0

    def instant(self, expr: str, at_ms: int) -> QueryResult:
        self.questions += "workload_gpu_hours" in expr
        return super().instant(expr, at_ms)


NOW = clock.to_ms(START)
BOOK = """
[[price]]
model = "H200"
per_gpu_hour = 2.0
source = "a test"
[budgets]
vision = 100
speech = 1000000
"""


PARTS = (
    ("vision", "allocated", 6.0),
    ("vision", "used", 3.0),
    ("vision", "wasted", 1.0),
    ("vision", "kwh", 4.0),
    ("speech", "allocated", 2 / 7),
    ("speech", "unmeasured", 2 / 7),
    ("(nobody)", "idle", 1.0),
)


def recorded() -> Iterator[Sample]:
    """Three days in which vision held six GPUs, speech two slices of one, and one was idle."""
    for hour in range(HOURS):
        at = NOW // 3_600_000 * 3_600_000 - hour * 3_600_000
        yield Sample(Labels({METRIC_NAME: "watchkeeper:usage_minutes:count", "cluster": "main"}), at, 60.0)
        own = {"cluster": "main", "modelName": "NVIDIA H200"}
        for team, part, value in PARTS:
            name = "fleet" if team == "(nobody)" else "workload"
            job = (
                {} if name == "fleet" else {"workload": f"{team}-1", "namespace": team, "user": "ana", "Hostname": "n1"}
            )
            labels = {**own, "team": team, "part": part}
            space = {} if name == "fleet" else {"namespace": team}
            yield Sample(Labels({METRIC_NAME: f"watchkeeper:{name}_gpu_hours:sum", **labels, **job}), at, value)
            yield Sample(Labels({METRIC_NAME: "watchkeeper:team_gpu_hours:sum", **labels, **space}), at, value)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("hub")
    (folder / "book.toml").write_text(BOOK)
    hub = SmallHub(racks=1, per_rack=2, clock=ManualClock(START))
    of_hub = dataclasses.replace(hub.settings.hub, data=str(folder))
    of_cost = dataclasses.replace(hub.settings.cost, prices=str(folder / "book.toml"))
    hub.settings = dataclasses.replace(hub.settings, hub=of_hub, cost=of_cost)
    hub.engine = CountedEngine(head.Head(retention_ms=400 * 86_400_000))
    hub.engine.appender.append(sorted(recorded(), key=lambda sample: sample.at_ms))
    with serving(hub) as running:
        yield running


def run(site: Site, command: Any, *arguments: str) -> Result:
    return CliRunner().invoke(command, [*arguments, "--hub", site.url])


def run_json(site: Site, command: Any, *arguments: str) -> dict[str, Any]:
    result = run(site, command, *arguments, "--json")
    assert result.exit_code in (0, 1), result.output
    answer: dict[str, Any] = json.loads(result.output)
    return answer


def test_usage_is_answered_by_team_and_by_job_alike(site: Site) -> None:
    window = ("--from", "-2d")
    teams = run_json(site, usage.command, *window)
    jobs = run_json(site, usage.command, *window, "--by", "job")
    # The minutes since the last full hour are not recorded yet, and so unknown.
    assert teams["total"]["total"] == pytest.approx((7 + 2 / 7) * 48, rel=1e-4)
    assert jobs["total"] == pytest.approx(teams["total"])
    assert [line["team"] for line in teams["lines"]] == ["vision", "speech", "(nobody)"]


def test_cost_drills_down_to_jobs_that_sum_to_the_team(site: Site) -> None:
    teams = run_json(site, cost.command, "report", "--from", "-1d", "--policy", "allocation")
    behind = run_json(site, cost.command, "report", "--from", "-1d", "--policy", "allocation", "--of", "team=vision")
    assert behind["money"] == pytest.approx(next(line["money"] for line in teams["lines"] if line["team"] == "vision"))
    assert behind["waste"][0]["job"] == "vision/vision-1"


def test_energy_of_rented_gpus_is_in_their_price_and_no_column_of_nought(site: Site) -> None:
    shown = run(site, cost.command, "report", "--from", "-1d").stdout.splitlines()
    assert "energy" not in shown[1].split()
    energy = next(line for line in shown if line.startswith("energy: "))
    assert "kWh at the GPUs" in energy
    assert energy.endswith("; the price of rented GPUs includes energy")


def test_a_year_names_no_job_that_wastes_and_says_so(site: Site) -> None:
    year = run_json(site, cost.command, "report", "--from", "-1y")
    assert year["waste"] == []
    assert "allocated, idle GPUs are listed for at most 35 days" in year["notes"]
    assert run_json(site, cost.command, "report", "--from", "-4w")["waste"]


def test_a_budget_that_is_over_is_trouble(site: Site) -> None:
    result = run(site, cost.command, "budget")
    assert result.exit_code == 1
    lines = [line for line in result.output.splitlines() if line.startswith(("vision", "speech"))]
    assert [line.split()[-1] for line in lines] == ["over", "within"]


def test_a_hub_charges_each_hour_what_the_book_said_then(site: Site) -> None:
    book = Path(str(site.hub.settings.cost.prices))
    dearer = '[[price]]\nmodel = "H200"\nper_gpu_hour = 3.0\nsource = "a test"\nfrom = 2026-02-11\n'
    window = ("--from", "2026-02-10", "--to", "2026-02-12")
    try:
        book.write_text(dearer + BOOK)
        report = run_json(site, cost.command, "report", *window)
        spent = {line["team"]: line["spent"] for line in run_json(site, cost.command, "budget")["budgets"]}
    finally:
        book.write_text(BOOK)
    assert report["lines"][0]["money"] == pytest.approx(24 * 6 * 2 + 24 * 6 * 3)
    hours = run_json(site, usage.command, "--from", "2026-02-01", "--to", "2026-02-11")["lines"][0]["allocated"]
    later = run_json(site, usage.command, "--from", "2026-02-11", "--to", "2026-02-13")["lines"][0]["allocated"]
    assert spent["vision"] == pytest.approx(hours * 2 + later * 3)


@pytest.mark.parametrize("policy", ["none", "allocation"])
def test_a_budget_its_statement_and_the_report_of_the_month_agree(site: Site, tmp_path: Path, policy: str) -> None:
    report = run_json(site, cost.command, "report", "--from", "2026-02-01", "--policy", policy)["lines"]
    budgets = run_json(site, cost.command, "budget", "--policy", policy)["budgets"]
    money = {line["team"]: line["money"] for line in report if line["team"] != "(nobody)"}
    assert {line["team"]: line["spent"] for line in budgets} == pytest.approx(money)
    result = run(site, cost.command, "statement", "--policy", policy, "-o", str(tmp_path))
    for team, spent in money.items():
        assert f"2026-02-{team}.html: {spent:,.2f} USD" in result.output


def test_statements_come_from_a_hub_with_the_budget_on_them(site: Site, tmp_path: Path) -> None:
    result = run(site, cost.command, "statement", "--team", "vision", "-o", str(tmp_path))
    assert result.exit_code == 0, result.output
    text = next(tmp_path.iterdir()).read_text()
    assert "budget this month" in text
    assert "vision-1" in text


def test_what_teams_have_in_common_is_read_once_for_all_their_statements(site: Site, tmp_path: Path) -> None:
    requests = []
    for teams in (("vision",), ("vision", "speech")):
        before = site.hub.engine.questions  # type: ignore[attr-defined]
        chosen = [word for team in teams for word in ("--team", team)]
        result = run(site, cost.command, "statement", *chosen, "-o", str(tmp_path / str(len(teams))))
        assert result.exit_code == 0, result.output
        assert len(list((tmp_path / str(len(teams))).iterdir())) == len(teams)
        requests.append(site.hub.engine.questions - before)  # type: ignore[attr-defined]
    assert requests[1] == requests[0] > 0


def test_a_team_that_the_hub_does_not_know_has_no_statement(site: Site, tmp_path: Path) -> None:
    result = run(site, cost.command, "statement", "--team", "visoin", "-o", str(tmp_path))
    assert "no team `visoin` used a GPU in 2026-02" in str(result.exception)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        ("/api/usage?by=colour", "no dimension `colour`"),
        ("/api/usage?from=5&to=4", "must be before"),
        ("/api/usage?from=0", "days, the limit is"),
        ("/api/usage?of=vision", "such as team=vision"),
        ("/api/usage?of=team=vision&of=team=speech", "team is set already"),
        ("/api/cost?policy=fair", "expected none, use, allocation, even"),
        ("/api/cost/budgets?month=soon", "such as 2026-11"),
        ("/api/cost/statements?month=2026-13", "such as 2026-11"),
        ("/api/cost/statements?month=2026-03", "2026-03 is in the future"),
        ("/api/cost/budgets?zone=Mars", "such as Europe/Berlin"),
        ("/api/usage?by=team,user,job,node,pool", "the limit is 4"),
    ],
)
def test_questions_that_cannot_be_answered_say_why(site: Site, path: str, problem: str) -> None:
    reply = site.ask(path)
    assert reply.status == 400
    assert problem in reply.json["error"]
