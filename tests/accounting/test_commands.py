"""`watchkeeper usage` and `cost` over a table of jobs, as the platform lead tries them before there is a hub."""

from __future__ import annotations

import csv
import io
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.accounting.command import run
from watchkeeper.accounting import report_files
from watchkeeper.cli.accounting import cost, usage
from watchkeeper.errors import WatchkeeperError

JOBS = """id,team,user,project,model,gpus,started,ended,activity
1,vision,ana,maps,NVIDIA H200,8,2026-11-01T00:00:00Z,2026-11-02T00:00:00Z,0.5
2,speech,bob,asr,NVIDIA H100 80GB HBM3,4,2026-11-01T12:00:00Z,2026-11-02T00:00:00Z,0.01
3,=cmd|'/c calc'!A1,@eve,+1,NVIDIA L40S,2,2026-11-01T00:00:00Z,2026-11-02T00:00:00Z,
4,<script>alert(1)</script>,mallory,-x,NVIDIA H200,1,2026-11-01T00:00:00Z,2026-11-02T00:00:00Z,
"""


@pytest.fixture
def jobs(tmp_path: Path) -> str:
    path = tmp_path / "jobs.csv"
    path.write_text(JOBS)
    return str(path)


def run_failing(command: object, *arguments: object) -> BaseException:
    result = CliRunner().invoke(command, [str(argument) for argument in arguments])  # type: ignore[arg-type]
    assert isinstance(result.exception, WatchkeeperError), result.output
    return result.exception


def test_usage_of_a_table_of_jobs_is_shown_by_team(jobs: str) -> None:
    shown = run(usage.command, "--jobs", jobs, "--gpus", 20).output.splitlines()
    assert shown[0] == "2026-11-01 00:00 to 2026-11-02 00:00 UTC (24.0 h); GPU-hours"
    assert shown[2].split() == ["vision", "192.0", "192.0", "0.0", "96.0", "0.0", "0.0", "0.0", "50%"]
    total = next(line for line in shown if line.startswith("total"))
    assert total.split()[1:3] == ["480.0", "312.0"]


def test_a_line_drills_down_to_its_jobs_and_they_sum_to_it(jobs: str) -> None:
    teams = json.loads(run(usage.command, "--jobs", jobs, "--json").output)
    behind = json.loads(run(usage.command, "--jobs", jobs, "--of", "team=vision", "--json").output)
    assert [line["job"] for line in behind["lines"]] == ["1"]
    assert (
        behind["total"]["allocated"] == next(line for line in teams["lines"] if line["team"] == "vision")["allocated"]
    )
    assert teams["words"]["unknown"].startswith("no samples")


def test_a_zone_moves_the_window_of_a_plain_date(jobs: str) -> None:
    window = ("--from", "2026-11-01", "--to", "2026-11-02", "--zone", "America/New_York")
    answer = json.loads(run(usage.command, "--jobs", jobs, *window, "--json").output)
    assert (answer["until"] - answer["since"]) / 3600 == 25
    # From 04:00Z on, twenty hours of fifteen GPUs less those of the job that comes at noon.
    assert answer["total"]["allocated"] == pytest.approx(20 * 11 + 12 * 4)


def test_nobody_is_charged_for_hours_that_are_still_to_come(tmp_path: Path) -> None:
    begun = datetime.now(UTC) - timedelta(hours=10)
    (tmp_path / "jobs.csv").write_text(f"id,team,gpus,started,ended\n1,vision,8,{begun.isoformat()},\n")
    window = ("--from", begun.isoformat(), "--to", "2999-01-01", "--gpus", 16)
    total = json.loads(run(usage.command, "--jobs", tmp_path / "jobs.csv", *window, "--json").output)["total"]
    assert total["allocated"] == pytest.approx(80, rel=0.05)
    assert total["idle"] == pytest.approx(80, rel=0.05)


def test_names_from_outside_are_defused_in_csv(jobs: str) -> None:
    text = run(cost.command, "report", "--jobs", jobs, "--by", "team", "--by", "user", "--format", "csv").stdout
    rows = list(csv.DictReader(io.StringIO(text)))
    assert {"'=cmd|'/c calc'!A1", "vision", "total"} <= {row["team"] for row in rows}
    assert "'@eve" in {row["user"] for row in rows}
    assert sum(float(row["money"] or 0) for row in rows[:-1]) == pytest.approx(float(rows[-1]["money"]))


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_what_a_file_of_numbers_excludes_is_said_beside_it(jobs: str, tmp_path: Path, form: str) -> None:
    result = run(cost.command, "report", "--jobs", jobs, "--format", form, "-o", tmp_path / "report")
    assert result.stdout == ""
    assert "note: 48.0 GPU-hours of NVIDIA L40S have no price and are not in any cost" in result.stderr


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@x", "\tx", "\rx", "\n=1", "\uff1d1+1"])
def test_no_cell_can_be_a_formula(text: str) -> None:
    assert report_files.escape_cell(text).startswith("'")


def test_a_page_shows_what_it_rests_on_and_runs_nothing(jobs: str, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    run(cost.command, "report", "--jobs", jobs, "--format", "html", "-o", page)
    text = page.read_text()
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text
    assert "<script" not in text
    assert "48.0 GPU-hours of NVIDIA L40S have no price and are not in any cost" in text
    assert "no price" in text


def test_a_statement_is_written_for_each_team(jobs: str, tmp_path: Path) -> None:
    run(cost.command, "statement", "--jobs", jobs, "--month", "2026-11", "-o", tmp_path / "pages")
    names = sorted(path.name for path in (tmp_path / "pages").iterdir())
    assert names[-2:] == ["2026-11-speech.html", "2026-11-vision.html"]
    assert len(names) == 4
    text = (tmp_path / "pages" / "2026-11-speech.html").read_text()
    assert "GPU statement of speech, 2026-11" in text
    assert "Allocated and idle" in text
    assert "Jobs in this statement" in text


def test_every_team_has_a_statement_of_its_own_whatever_its_name(tmp_path: Path) -> None:
    teams = ["a/b", "a_b", "a%2Fb", "..", "\u4e2d\u6587", "\u65e5\u672c"]
    rows = "".join(f"{at},{team},1,2026-11-01,2026-11-02\n" for at, team in enumerate(teams))
    (tmp_path / "jobs.csv").write_text(f"id,team,gpus,started,ended\n{rows}")
    run(cost.command, "statement", "--jobs", tmp_path / "jobs.csv", "--month", "2026-11", "-o", tmp_path / "pages")
    pages = [path.read_text() for path in (tmp_path / "pages").iterdir()]
    assert all(any(f"GPU statement of {team}, 2026-11" in page for page in pages) for team in teams)


def test_a_bad_line_is_named_once_however_many_statements_are_written(tmp_path: Path) -> None:
    rows = "1,a,1,2026-11-01,2026-11-02\n2,b,1,2026-11-01,2026-11-02\n2,b,1,2026-11-01,2026-11-02\n"
    (tmp_path / "jobs.csv").write_text(f"id,team,gpus,started,ended\n{rows}")
    result = run(cost.command, "statement", "--jobs", tmp_path / "jobs.csv", "--month", "2026-11", "-o", tmp_path)
    assert result.stderr.count("duplicate job id") == 1


def test_a_statement_takes_no_other_time_than_a_month(jobs: str, tmp_path: Path) -> None:
    arguments = ("--jobs", jobs, "--month", "2026-11", "--from", "2026-11-01", "-o", tmp_path)
    assert "use --month instead of --from and --to" in run(cost.command, "statement", *arguments).output


def test_a_month_has_one_name(jobs: str, tmp_path: Path) -> None:
    shown = run(cost.command, "statement", "--jobs", jobs, "--month", "2026-1", "-o", tmp_path).output
    assert "--month `2026-1` is not YYYY-MM, for example 2026-11" in shown


def test_a_line_has_no_price_only_where_none_of_its_hours_has_one(tmp_path: Path) -> None:
    rows = ("1,given,NVIDIA H200", "2,given,NVIDIA L40S", "3,asked,NVIDIA L40S")
    text = "".join(f"{row},1,2026-11-01,2026-11-02\n" for row in rows)
    (tmp_path / "jobs.csv").write_text(f"id,team,model,gpus,started,ended\n{text}")
    (tmp_path / "book.toml").write_text('[[price]]\nmodel = "H200"\nper_gpu_hour = 0\nsource = "a gift"\n')
    arguments = ("report", "--jobs", tmp_path / "jobs.csv", "--prices", tmp_path / "book.toml")
    shown = run(cost.command, *arguments).output.splitlines()
    assert [line.split()[-1] for line in shown if line.startswith(("given", "asked"))] == ["price", "0.00"]
    page = run(cost.command, *arguments, "--format", "html").stdout
    assert page.count("no price</td>") == 1


def test_a_line_without_a_price_shows_its_share_of_what_nobody_held(tmp_path: Path) -> None:
    (tmp_path / "jobs.csv").write_text(
        "id,team,model,gpus,started,ended\n1,asked,NVIDIA L40S,1,2026-11-01,2026-11-02\n"
    )
    (tmp_path / "book.toml").write_text('[[price]]\nmodel = "H200"\nper_gpu_hour = 2\n')
    shared = ("--gpus", 2, "--model", "NVIDIA H200", "--policy", "allocation")
    arguments = ("report", "--jobs", tmp_path / "jobs.csv", "--prices", tmp_path / "book.toml", *shared)
    shown = run(cost.command, *arguments).output.splitlines()
    assert [line.split()[-1] for line in shown if line.startswith(("asked", "total"))] == ["48.00", "48.00"]
    assert "no price</td>" not in run(cost.command, *arguments, "--format", "html").stdout


def test_a_team_that_held_nothing_has_no_statement(jobs: str, tmp_path: Path) -> None:
    result = run_failing(cost.command, "statement", "--jobs", jobs, "--month", "2026-11", "--team", "visoin")
    assert "no team `visoin` used a GPU in 2026-11" in str(result)


def test_energy_that_nobody_measured_is_not_nought(jobs: str, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    run(cost.command, "report", "--jobs", jobs, "--format", "html", "-o", page)
    assert "<dd>not measured</dd>" in page.read_text()
    assert "kWh</th>" not in page.read_text()


def test_a_part_that_nobody_has_is_said_to_be_empty(jobs: str) -> None:
    for command in ((usage.command,), (cost.command, "report")):
        shown = run(*command, "--jobs", jobs, "--of", "team=visoin").output
        assert "note: no usage matches team visoin in this period" in shown


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("--gpus", "nan"), "`nan` is not a number"),
        (("--gpus", "inf"), "is not in the range"),
        (("--of", "team=vision", "--of", "team=speech"), "team is given twice; give it once"),
        (("--from", "2026-11-02", "--to", "2026-11-01"), "--from (2026-11-02T00:00:00Z) must be before --to"),
    ],
)
def test_a_question_without_an_answer_says_why(jobs: str, arguments: tuple[str, ...], problem: str) -> None:
    assert problem in run(usage.command, "--jobs", jobs, *arguments).output


def test_an_empty_report_has_the_columns_of_every_other(jobs: str) -> None:
    windows = (("2026-11-01", "2026-11-02"), ("2025-01-01", "2025-01-02"))
    full, empty = (
        run(cost.command, "report", "--jobs", jobs, "--format", "csv", "--from", since, "--to", until).stdout
        for since, until in windows
    )
    assert empty.splitlines()[0] == full.splitlines()[0]
    assert set(empty.splitlines()[1].split(",")) == {"total", "0"}


def test_a_table_that_is_not_utf_8_names_its_line(tmp_path: Path) -> None:
    path = tmp_path / "jobs.csv"
    path.write_bytes("id,team,gpus,started,ended\n1,M\u00fcller,1,0,3600\n".encode("latin-1"))
    assert f"{path}:2: is not UTF-8" in str(run_failing(usage.command, "--jobs", path))


def test_a_price_book_of_ones_own_is_used_and_its_policy_named(jobs: str, tmp_path: Path) -> None:
    book = tmp_path / "book.toml"
    book.write_text('currency = "EUR"\n[[price]]\nmodel = "L40S"\nper_gpu_hour = 1.0\nsource = "us"\n')
    arguments = ("--jobs", jobs, "--prices", book, "--policy", "even", "--gpus", 20, "--model", "NVIDIA L40S")
    answer = json.loads(run(cost.command, "report", *arguments, "--json").output)
    assert answer["currency"] == "EUR"
    assert answer["policy_words"].startswith("chargeback: shared cost split evenly")
    # 168 idle hours at 1, shared by four teams, and 48 hours of those who held an L40S.
    assert answer["money"] == pytest.approx(168 + 48)
    assert answer["holes"] == pytest.approx({"NVIDIA H200": 216, "NVIDIA H100 80GB HBM3": 48})


def test_a_price_that_changes_within_a_month_is_charged_from_its_day_on(tmp_path: Path) -> None:
    (tmp_path / "jobs.csv").write_text("id,team,model,gpus,started,ended\n1,a,H200,1,2026-10-01,2026-11-01\n")
    price = '[[price]]\nmodel = "H200"\nsource = "us"\n'
    (tmp_path / "book.toml").write_text(f"{price}per_gpu_hour = 1\n{price}per_gpu_hour = 2\nfrom = 2026-10-15\n")
    arguments = ("--jobs", tmp_path / "jobs.csv", "--prices", tmp_path / "book.toml")
    # 14 days at 1 and 17 at 2, however they are asked for.
    answer = json.loads(run(cost.command, "report", *arguments, "--json").output)
    assert [(line["team"], line["money"]) for line in answer["lines"]] == [("a", (14 * 1 + 17 * 2) * 24)]
    shown = run(cost.command, "statement", *arguments, "--month", "2026-10", "-o", tmp_path).output
    assert "2026-10-a.html: 1,152.00 USD" in shown
    before = ("--from", "2026-10-01", "--to", "2026-10-15")
    assert json.loads(run(cost.command, "report", *arguments, *before, "--json").output)["money"] == 14 * 24
