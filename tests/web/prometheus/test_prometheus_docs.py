"""Every endpoint of Prometheus' API has its row in the reference, and the reference has no other."""

from __future__ import annotations

import re

from tests.support.paths import ROOT
from tests.web.small_hub import SmallHub
from watchkeeper.web.app import create_app
from watchkeeper.web.auth.auth import Auth

PAGE = ROOT / "docs" / "reference" / "api.md"
# | `/api/v1/query` | GET, POST |
ROW = re.compile(r"^\| `(/(?:api/v1/|federate|api/recording)[^`]*)` \| ([A-Z, ]+) \|", re.MULTILINE)


def test_the_reference_lists_the_endpoints_that_there_are() -> None:
    table = create_app(SmallHub().services, Auth()).state.endpoints
    there = {row.path: ", ".join(row.methods) for row in table if ROW.match(f"| `{row.path}` | GET |")}
    assert dict(ROW.findall(PAGE.read_text())) == there
