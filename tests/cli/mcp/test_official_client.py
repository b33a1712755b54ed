"""`watchkeeper mcp` with the official client, in both generations of the protocol."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator
from typing import Any

import mcp
import pytest

from tests.web import stories
from tests.web.running import Site, serving
from tests.web.small_hub import SmallHub

READING = {
    *("fleet_overview", "node", "gpu", "query", "incidents", "incident", "doctor", "runbook"),
    *("jobs", "job", "usage", "cost", "capacity"),
}
ACTING = {"acknowledge", "note", "approve"}
ERAS = ["legacy", "2026-07-28", "auto"]


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    hub = SmallHub()
    stories.lose_gpu(hub)
    with serving(hub) as running:
        yield running


def talk(site: Site, story: Any, *options: str, mode: str = "auto") -> Any:
    """Start the command as an assistant does, and tell a story to it."""
    arguments = ["-m", "watchkeeper.cli.main", "mcp", "--hub", site.url, *options]

    async def run() -> Any:
        server = mcp.StdioServerParameters(command=sys.executable, args=arguments)
        async with mcp.Client(server, mode=mode, read_timeout_seconds=60) as client:
            return await story(client)

    return asyncio.run(run())


async def call_tool(client: mcp.Client, name: str, /, **arguments: Any) -> Any:
    result = await client.call_tool(name, arguments)
    assert not result.is_error, result.content
    return json.loads(result.content[0].text)


@pytest.mark.parametrize("mode", ERAS)
def test_a_client_of_each_protocol_lists_read_only_tools_and_calls_one(site: Site, mode: str) -> None:
    async def story(client: mcp.Client) -> None:
        listed = (await client.list_tools()).tools
        assert {tool.name for tool in listed} == READING
        assert all(tool.annotations and tool.annotations.read_only_hint for tool in listed)
        incident = await call_tool(client, "incident", id="INC-1")
        assert incident["diagnosis"]["findings"][0]["cause"] == "gpu_fell_off_bus"
        assert incident["runbook"] == "watchkeeper://runbooks/gpu-fell-off-bus"

    talk(site, story, mode=mode)


def test_an_assistant_navigates_from_the_fleet_to_a_gpu(site: Site) -> None:
    async def story(client: mcp.Client) -> None:
        fleet = await call_tool(client, "fleet_overview")
        assert fleet["open_incidents_by_severity"] == {"critical": 1}
        node = await call_tool(client, "node", name="gpu-r01-02")
        assert len(node["nodes"][0]["gpus"]) == 8
        gpu = await call_tool(client, "gpu", name="gpu-r01-02/0")
        assert gpu["gpus"][0]["index"] == 0
        series = await call_tool(client, "query", expr="DCGM_FI_DEV_GPU_UTIL")
        assert series["series_shown"] == len(series["series"]) == 31

    talk(site, story)


def test_a_runbook_is_a_resource_and_a_pasted_log_is_diagnosed(site: Site) -> None:
    async def story(client: mcp.Client) -> None:
        uris = [str(resource.uri) for resource in (await client.list_resources()).resources]
        read = await client.read_resource("watchkeeper://runbooks/gpu-fell-off-bus")
        assert len(uris) > 40
        assert "How to fix" in read.contents[0].text  # type: ignore[union-attr]
        report = await call_tool(client, "doctor", text=f"[ 1.0] {stories.KERNEL_LINE}\n")
        assert report["findings"][0]["cause"] == "gpu_fell_off_bus"

    talk(site, story)


def test_an_error_of_a_tool_is_returned_as_text(site: Site) -> None:
    async def story(client: mcp.Client) -> None:
        for name, arguments, words in (
            ("incident", {"id": "INC-9"}, "incident INC-9 not found"),
            ("incident", {}, "`id` is missing"),
            ("query", {"expr": "sum("}, "query"),
            ("node", {"name": "nowhere"}, "no GPU, node, pod, job, user or team has the name"),
        ):
            result = await client.call_tool(name, arguments)
            assert result.is_error
            assert words in result.content[0].text  # type: ignore[union-attr]

    talk(site, story)


def test_actions_need_allow_actions(site: Site) -> None:
    async def refused(client: mcp.Client) -> None:
        with pytest.raises(mcp.MCPError, match="unknown tool acknowledge"):
            await client.call_tool("acknowledge", {"id": "INC-1"})

    async def allowed(client: mcp.Client) -> None:
        assert {tool.name for tool in (await client.list_tools()).tools} == READING | ACTING
        result = await client.call_tool("note", {"id": "INC-1", "text": "the riser is on its way"})
        assert result.content[0].text == "Note added to INC-1."  # type: ignore[union-attr]

    talk(site, refused)
    talk(site, allowed, "--allow-actions")
    assert any("riser" in str(entry.body) for entry in site.hub.journal.timeline("INC-1"))
