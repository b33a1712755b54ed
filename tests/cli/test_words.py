"""Texts on a terminal: help with whole sentences, suggestions for mistyped commands, and resolved incidents."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from watchkeeper.cli import main
from watchkeeper.cli.fleet import incidents, jobs
from watchkeeper.cli.hub import store
from watchkeeper.client import answers, reading
from watchkeeper.model.jobs import JobLine


def groups(command: click.Command, names: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    if not isinstance(command, click.Group):
        return
    yield names
    context = click.Context(command)
    for name in command.list_commands(context):
        below = command.get_command(context, name)
        assert below is not None
        yield from groups(below, (*names, name))


def test_help_never_truncates_the_sentence_of_a_command() -> None:
    for names in groups(main.watchkeeper, ()):
        output = CliRunner().invoke(main.watchkeeper, [*names, "--help"], terminal_width=80).output
        listed = output.partition("Commands:")[2].splitlines()
        assert listed, names
        assert [line for line in listed if line.endswith("...")] == [], names


def test_a_mistyped_command_gets_a_suggestion() -> None:
    result = CliRunner().invoke(main.watchkeeper, ["incidnts"])
    assert (result.exit_code, "Did you mean 'incidents'?" in result.output) == (2, True)
    assert "Did you mean" not in CliRunner().invoke(main.watchkeeper, ["zzz"]).output


@pytest.mark.parametrize("typed", ["7", "inc7", "INC7", "inc-7", "INC-7"])
def test_incidents_accepts_an_id_as_a_command(typed: str) -> None:
    context = click.Context(incidents.command)
    name, _, rest = incidents.command.resolve_command(context, [typed, "--json"])
    assert (name, rest) == ("show", [typed, "--json"])


def test_a_missing_data_directory_is_not_reported_as_undamaged(tmp_path: Path) -> None:
    result = CliRunner().invoke(store.command, ["verify", "--data", str(tmp_path / "elsewhere")])
    assert result.exit_code == 3
    assert "no damage" not in result.output
    assert f"{tmp_path / 'elsewhere'}: no data of a hub" in result.output


def described(blast: Any = None, **fields: Any) -> list[str]:
    place = {"cluster": "sim", "node": None, "gpu": None, "domain": "model=chat"}
    times = {"opened_at": "2026-11-16T18:04:52.000Z", "resolved_at": None}
    about = {"id": "INC-1", "title": "x", "severity": "critical", "state": "open", "workloads": [], "part_of": None}
    about |= {"recovering_since": None, "assignee": None}
    about["root"] = None
    rest = dict.fromkeys(("diagnosis", "plan", "silenced_by")) | {"runbook": ""}
    detail = {"incident": {**about, "place": place, **times, **fields}, "blast": blast, **rest}
    return incidents.describe(reading.read_answer(answers.FullIncidentDetail, detail))


def test_a_resolved_incident_shows_when_it_opened_and_ended() -> None:
    assert described()[1] == "critical, open; opened 2026-11-16T18:04:52Z"
    line = described(state="resolved", resolved_at="2026-11-16T18:15:20.5Z")[1]
    assert line == "critical, resolved; opened 2026-11-16T18:04:52Z, resolved 2026-11-16T18:15:20Z"


def test_the_impact_of_a_model_without_gpus_is_unknown() -> None:
    blast = {"gpus": 0, "gpu_hours": 0.0, "dollars_per_hour": 0.0, "currency": "USD", "hits": [], "teams": []}
    blast |= {"counted_in": []}
    lines = described(blast)
    assert [line for line in lines if line.startswith("impact")] == [incidents.UNKNOWN_IMPACT]
    empty = {"cluster": "sim", "node": "n1", "gpu": None, "domain": None}
    assert incidents.NO_IMPACT in described(blast, place=empty)
    stopped = {**blast, "hits": [{"workload": "llm", "team": "ai", "gpus": None, "stopped": True}]}
    assert incidents.UNKNOWN_IMPACT in described(stopped, place=empty)


def test_the_impact_names_the_incident_that_counts_the_other_gpus() -> None:
    blast = {"gpus": 8, "gpu_hours": 2.0, "dollars_per_hour": 23.0, "currency": "USD", "hits": [], "teams": []}
    assert "impact 8 GPUs do no work, 2 GPU-hours so far, 23.00 dollars per hour" in described(
        blast | {"counted_in": []}
    )
    line = "impact 8 GPUs do no work, 2 GPU-hours so far, 23.00 dollars per hour (INC-1 counts the rest)"
    assert line in described(blast | {"counted_in": ["INC-1"]})
    assert "impact counted in INC-1" in described(blast | {"gpus": 0, "counted_in": ["INC-1"]})


def test_a_stalled_job_names_its_incident() -> None:
    about = dict.fromkeys(("id", "cluster", "name", "namespace", "user", "team"), "") | {"nodes": 1, "gpus": 8}
    about |= {"kind": "slurm", "state": "stalled", "bound_by": "nothing", "stalled_since": "2026-11-16T18:04:54Z"}
    unknown = ("started_at", "gpu_hours", "used", "memory_used", "goodput", "straggler", "cost")
    line = {**about, **dict.fromkeys(unknown), "incidents": ["INC-4"]}
    assert jobs.format_note(reading.read_answer(JobLine, line)) == "stalled since 18:04:54Z; INC-4"
