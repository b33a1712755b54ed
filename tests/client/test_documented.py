"""The example of docs/howto/api.md, run as it stands against a hub."""

from __future__ import annotations

import re

import pytest

from tests.support.paths import ROOT
from tests.web import stories
from tests.web.running import serving
from tests.web.small_hub import SmallHub
from watchkeeper.client.address import DEFAULT_URL
from watchkeeper.client.typed import Client

PAGE = (ROOT / "docs" / "howto" / "api.md").read_text()
EXAMPLE = re.search(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def test_the_example_prints_incidents_readings_and_room(capsys: pytest.CaptureFixture[str]) -> None:
    assert EXAMPLE is not None
    hub = SmallHub()
    stories.lose_gpu(hub)
    with serving(hub) as site:
        exec(compile(EXAMPLE[1].replace(DEFAULT_URL, site.url), "api.md", "exec"), {})
    printed = capsys.readouterr().out
    assert "INC-1 critical" in printed
    assert "kernel NVRM: Xid" in printed
    assert "GPUs are free" in printed


def test_every_method_that_the_page_names_is_there() -> None:
    table = PAGE.partition("| Method |")[2].partition("\n\n")[0]
    named = re.findall(
        r"`(\w+)(?:\([^`]*\))?`", "\n".join(row.split("|")[1] for row in table.splitlines() if "`" in row)
    )
    assert len(named) > 20
    assert not [name for name in named if not hasattr(Client, name)]
