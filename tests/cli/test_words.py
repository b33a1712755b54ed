"""What a stranger reads on a terminal: help with whole sentences, mistyped names, and an incident that is over."""

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


def test_no_list_of_commands_ends_a_sentence_in_the_middle() -> None:
    for names in groups(main.watchkeeper, ()):
        said = CliRunner().invoke(main.watchkeeper, [*names, "--help"], terminal_width=80).output
        listed = said.partition("Commands:")[2].splitlines()
        assert listed, names
        assert [line for line in listed if line.endswith("...")] == [], names


def test_a_mistyped_command_is_answered_with_the_one_that_is_meant() -> None:
    said = CliRunner().invoke(main.watchkeeper, ["incidnts"])
    assert (said.exit_code, "Did you mean 'incidents'?" in said.output) == (2, True)
    assert "Did you mean" not in CliRunner().invoke(main.watchkeeper, ["zzz"]).output


@pytest.mark.parametrize("typed", ["7", "inc7", "INC7", "inc-7", "INC-7"])
def test_an_incident_may_be_named_by_its_number(typed: str) -> None:
    context = click.Context(incidents.command)
    name, _, rest = incidents.command.resolve_command(context, [typed, "--json"])
    assert (name, rest) == ("show", [typed, "--json"])


def test_nothing_kept_is_not_called_undamaged(tmp_path: Path) -> None:
    found = CliRunner().invoke(store.command, ["verify", "--data", str(tmp_path / "elsewhere")])
    assert found.exit_code == 3
    assert "no damage" not in found.output
    assert f"{tmp_path / 'elsewhere'}: no data of a hub" in found.output


def described(blast: Any = None, **known: Any) -> list[str]:
    place = {"cluster": "sim", "node": None, "gpu": None, "domain": "model=chat"}
    times = {"opened_at": "2026-11-16T18:04:52.000Z", "resolved_at": None}
    about = {"id": "INC-1", "title": "x", "severity": "critical", "state": "open", "workloads": [], "part_of": None}
    rest = dict.fromkeys(("diagnosis", "plan", "silenced_by")) | {"runbook": ""}
    told = {"incident": {**about, "place": place, **times, **known}, "blast": blast, **rest}
    return incidents.describe(reading.read_answer(answers.FullIncidentDetail, told))


def test_an_incident_that_is_over_says_when_it_began_and_when_it_ended() -> None:
    assert described()[1] == "critical, open; opened 2026-11-16T18:04:52Z"
    told = described(state="resolved", resolved_at="2026-11-16T18:15:20.5Z")[1]
    assert told == "critical, resolved; opened 2026-11-16T18:04:52Z, resolved 2026-11-16T18:15:20Z"


def test_what_an_unplaced_model_costs_is_unknown_and_not_nothing() -> None:
    blast = {"gpus": 0, "gpu_hours": 0.0, "dollars_per_hour": 0.0, "hits": [], "teams": []}
    told = described(blast)
    assert [line for line in told if line.startswith("impact")] == [incidents.UNKNOWN_IMPACT]
    empty = {"cluster": "sim", "node": "n1", "gpu": None, "domain": None}
    assert "impact 0 GPUs, 0 GPU-hours so far, 0 dollars per hour" in described(blast, place=empty)


def test_a_job_that_stands_still_names_its_incident() -> None:
    about = dict.fromkeys(("id", "cluster", "name", "namespace", "user", "team"), "") | {"nodes": 1, "gpus": 8}
    about |= {"kind": "slurm", "state": "stalled", "bound_by": "nothing", "stalled_since": "2026-11-16T18:04:54Z"}
    unknown = ("started_at", "gpu_hours", "used", "memory_used", "goodput", "straggler", "cost")
    line = {**about, **dict.fromkeys(unknown), "incidents": ["INC-4"]}
    assert jobs.format_note(reading.read_answer(JobLine, line)) == "stalled since 18:04:54Z; INC-4"
