"""All spellings of the id of an incident, in every command that takes one."""

from __future__ import annotations

import pytest

from tests.web import stories
from tests.web.running import serving
from tests.web.small_hub import SmallHub
from watchkeeper.cli import main
from watchkeeper.cli.options import INCIDENT


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("INC-7", "INC-7"), ("inc-7", "INC-7"), ("inc7", "INC-7"), ("7", "INC-7"), ("INC-0007", "INC-7"), ("x-7", "x-7")],
)
def test_all_spellings_of_an_incident_id_are_accepted(typed: str, meant: str) -> None:
    assert INCIDENT.convert(typed, None, None) == meant


@pytest.mark.parametrize(
    "line",
    ["incidents 1", "incidents show inc-1", "incidents notices 1", "incidents report inc1", "incidents note 1 x"],
)
def test_commands_take_the_short_form(line: str) -> None:
    hub = SmallHub()
    stories.lose_gpu(hub)
    with serving(hub) as site:
        main.main([*line.split(), "--hub", site.url])


def test_an_unknown_incident_is_an_error_with_a_next_step(capsys: pytest.CaptureFixture[str]) -> None:
    with serving(SmallHub()) as site, pytest.raises(SystemExit) as left:
        main.main(["act", "explain", "9", "--hub", site.url])
    assert left.value.code == 1
    assert "incident INC-9 not found; `watchkeeper incidents --all` lists all incidents" in capsys.readouterr().err
