"""`watchkeeper capacity forecast` over tables, as a person or a program uses it."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from watchkeeper.cli import main
from watchkeeper.cli.accounting.capacity import command

NODES = "name,gpus,rack\nn1,8,r1\nn2,8,r2\n"
JOBS = "id,gpus,submitted,started,ended\na,6,0,0,1000\nb,8,10,,\nc,1,20,20,30\n"


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "demand.csv"
    rows = [
        f"2026-01-{1 + hour // 24:02} {hour % 24:02}:00:00,{60 + 20 * math.sin(hour / 24 * 6.283):.2f}"
        for hour in range(21 * 24)
    ]
    path.write_text("\n".join(["time,running_gpus", *rows]) + "\n")
    return path


def run(*arguments: object) -> Result:
    return CliRunner().invoke(command, [str(argument) for argument in arguments])


def answered(*arguments: object) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(run(*arguments, "--json").output)
    return answer


def test_the_documented_shape_is_answered(table: Path) -> None:
    columns = ["--time-column", "time", "--value-column", "running_gpus"]
    answer = answered("forecast", "--csv", table, *columns, "--horizon", "7d")
    assert isinstance(answer["model"], str)
    assert len(answer["forecast"]) == 168
    assert answer["forecast"][0]["time"] == "2026-01-22T00:00:00Z"
    assert set(answer["forecast"][0]) == {"time", "mean", "low", "high"}
    assert {"wape", "naive_wape", "coverage"} <= set(answer["backtest"])
    assert answer["backtest"]["wape"] < 0.01


def test_a_table_of_two_columns_needs_no_names_and_a_capacity_gives_the_sentence(table: Path) -> None:
    output = run("forecast", "--csv", table, "--capacity", 70, "--horizon", "1d").output
    assert output.startswith("Full on 2026-01-22 ")
    assert "80 % interval" in output.splitlines()[0]


def test_a_table_of_many_columns_needs_the_name_of_one(tmp_path: Path) -> None:
    path = tmp_path / "wide.csv"
    path.write_text("time,a,b\n0,1,2\n")
    result = run("forecast", "--csv", path)
    assert result.exit_code == 2
    assert "choose one with --value-column: a, b" in result.output


@pytest.mark.parametrize(
    ("header", "words"),
    [
        ("# exported on Monday", "the first line has only one column, '# exported on Monday'"),
        ("JobID|Submit|Start|End|AllocTRES", "this is a table of jobs (sacct); a forecast needs demand"),
    ],
)
def test_a_table_that_is_no_demand_is_refused_with_what_it_is(tmp_path: Path, header: str, words: str) -> None:
    path = tmp_path / "odd.csv"
    path.write_text(f"{header}\n1|2|3|4|5\n")
    assert words in str(run("forecast", "--csv", path).exception)


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        ("2026-01-01 00:00,80\n2026-01-01 00:10,90\n", "learning: 20 min of 2 days"),
        ("2026-01-01,80\n2026-02-01,90\n", "learning: 62 days of 124 days"),
        ("".join(f"2026-01-01 {hour:02}:00,{hour}\n" for hour in range(23)), "learning: 23 h of 2 days"),
    ],
)
def test_a_table_of_a_few_readings_gets_no_advice(tmp_path: Path, rows: str, reason: str) -> None:
    path = tmp_path / "short.csv"
    path.write_text("time,gpus\n" + rows)
    options = ("forecast", "--csv", path, "--capacity", 100)
    answer = answered(*options)
    assert [answer[name] for name in ("reason", "need", "advice", "full")] == [reason, None, None, None]
    assert answer["learning"]["history_seconds"] < answer["learning"]["needed_seconds"]
    result = run(*options)
    assert (result.exit_code, result.output.split(";")[0]) == (0, reason)


def test_a_column_without_a_name_is_not_asked_about(tmp_path: Path) -> None:
    path = tmp_path / "trailing.csv"
    path.write_text("time,gpus,\n" + "".join(f"2026-01-{day:02d},{day},\n" for day in range(1, 29)))
    assert answered("forecast", "--csv", path, "--horizon", "2d")["rows"]["used"] == 28


def test_an_option_for_tables_is_not_dropped_in_silence_without_one() -> None:
    result = run("forecast", "--step", "1h")
    assert result.exit_code == 2
    assert "--step applies to a table: add --csv FILE" in result.output


@pytest.mark.parametrize(("content", "words", "code"), [(b"", "not a table", 1), (b"\xff", "is not UTF-8", 2)])
def test_a_file_that_is_no_table_is_one_clear_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes, words: str, code: int
) -> None:
    (tmp_path / "demand.csv").write_bytes(content)
    with pytest.raises(SystemExit) as left:
        main.main(["capacity", "forecast", "--csv", str(tmp_path / "demand.csv"), "--value-column", "x"])
    log = capsys.readouterr().err
    assert (left.value.code, words in log, log.count("\n")) == (code, True, 1)


def test_what_is_left_out_of_a_table_is_in_the_answer_and_on_the_screen(table: Path) -> None:
    lines = table.read_text().splitlines()
    lines[40] = lines[40].rsplit(",", 1)[0] + ",n/a"
    lines[50] = lines[50].rsplit(",", 1)[0] + ",-7"
    table.write_text("\n".join(lines))
    answer = answered("forecast", "--csv", table, "--horizon", "1d")
    assert answer["rows"] == {"rows": 504, "used": 502, "left_out": 2}
    assert answer["problems"]["counts"] == {"negative demand": 1, "no value": 1}
    assert answer["history"]["gaps"] == 2
    output = run("forecast", "--csv", table, "--horizon", "1d").output
    assert "502 of 504 rows are used." in output
    assert f"{table}:41: no value: 'n/a'" in output


def test_capacity_now_of_tables_holds_what_still_runs_and_says_what_found_no_place(tmp_path: Path) -> None:
    nodes, jobs = tmp_path / "nodes.csv", tmp_path / "jobs.csv"
    nodes.write_text("name,gpus\nn1,8\nn2,many\n")
    jobs.write_text("id,gpus,submitted,started,ended\na,6,0,0,\nb,8,0,0,\nc,1,0,5,20\n")
    answer = answered("now", "--nodes", nodes, "--jobs", jobs)
    assert (answer["standing"]["held_gpus"], answer["standing"]["free_gpus"]) == (6, 2)
    assert answer["unplaced"] == {"jobs": 1, "gpus": 8.0}
    shown = run("now", "--nodes", nodes, "--jobs", jobs).output
    assert "1 running jobs with 8 GPUs do not fit on these nodes" in shown
    assert "nodes.csv:3: bad number" in shown
    replayed = run("whatif", "--nodes", nodes, "--jobs", jobs, "--add", 8).output
    assert "nodes.csv:3: bad number" in replayed


def test_capacity_now_of_tables_counts_what_ran_at_their_end(tmp_path: Path) -> None:
    (tmp_path / "nodes.csv").write_text(NODES)
    (tmp_path / "jobs.csv").write_text(JOBS)
    answer = answered("now", "--nodes", tmp_path / "nodes.csv", "--jobs", tmp_path / "jobs.csv")
    assert answer["standing"]["gpus"] == 16
    assert [(wait["gpus"], wait["waiting"], wait["longest_seconds"]) for wait in answer["waits"]] == [
        *((1, 0, None), (6, 0, None), (8, 1, 990.0)),
    ]
    assert run("now", "--nodes", tmp_path / "nodes.csv").exit_code == 2
