"""`watchkeeper drill --consistency`: a healthy fleet has no contradiction, and a stopped check continues."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from watchkeeper.cli.doctor import drill
from watchkeeper.cli.doctor.drill_consistency import run_command
from watchkeeper.drill.consistency import checking, judging, stories
from watchkeeper.drill.score import PAIRS
from watchkeeper.sim import scenario


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_no_answer_of_a_healthy_fleet_contradicts_another_also_after_a_restart(tmp_path: Path) -> None:
    plan = checking.ConsistencyPlan((stories.HEALTHY,), run_command, workers=1, progress_file=tmp_path / "progress")
    report = checking.run(plan, on_progress=lambda _: None)
    assert report.violations == ()
    assert report.looks >= 2
    assert report.invariants == len(judging.INVARIANTS)


def test_a_check_continues_from_its_progress_file(tmp_path: Path) -> None:
    progress_file = tmp_path / "progress"
    progress_file.write_text('{"story": "healthy", "looks": 7, "violations": []}\n')
    plan = checking.ConsistencyPlan((stories.HEALTHY,), run_command, progress_file=progress_file)
    assert checking.run(plan, on_progress=lambda _: None).looks == 7


def test_the_default_form_has_every_scenario_and_pair_and_the_long_one_all_pairs_and_ten_thousand_steps() -> None:
    names = scenario.load_scenarios()
    usual = checking.list_stories(names, is_long=False, with_all=True)
    assert set(names) | {" + ".join(pair) for pair in PAIRS} | {"healthy", "bad input"} == set(usual)
    long = checking.list_stories(names, is_long=True, with_all=True)
    assert sum(" + " in story for story in long) == len(names) * (len(names) - 1) / 2
    assert sum(story.startswith(stories.RANDOM) for story in long) * stories.STEPS == 10_000


def test_a_violation_is_printed_with_its_sentence_and_values_and_ends_with_code_1(tmp_path: Path) -> None:
    violation = {
        "invariant": "free-gpus",
        "sentence": "The map and capacity count the same free GPUs",
        "story": "node-down",
        "moment": "25 s later, during",
        "at": "2026-01-05T09:00:00.000000Z",
        "where": "free gpus",
        "values": {"page: map": 1, "/api/capacity/now": 9},
    }
    progress_file = tmp_path / "progress"
    progress_file.write_text(json.dumps({"story": "node-down", "looks": 9, "violations": [violation]}) + "\n")
    line = ["--consistency", "--scenario", "node-down", "--progress", str(progress_file)]
    result = CliRunner().invoke(drill.command, line)
    assert result.exit_code == 1
    assert "free-gpus: The map and capacity count the same free GPUs" in result.output
    assert "/api/capacity/now: 9" in result.output
    as_json = json.loads(CliRunner().invoke(drill.command, [*line, "--json"]).output)
    assert as_json["violations"] == [violation]
    assert as_json["looks"] == 9


def test_long_needs_consistency() -> None:
    result = CliRunner().invoke(drill.command, ["--long"])
    assert result.exit_code == 2
    assert "--consistency" in result.output
