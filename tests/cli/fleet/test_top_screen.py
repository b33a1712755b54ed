"""The live screen of `watchkeeper top`: on a simulated hub, with a fake driver, and with an unreachable hub."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
from textual.pilot import Pilot
from textual.widgets import DataTable, Static

from tests.support import running_product as product
from tests.support.fake_nvml import driver
from watchkeeper.agent import node_facts
from watchkeeper.agent.gpus import scan_readings
from watchkeeper.cli.fleet import top, top_sources
from watchkeeper.cli.fleet.top_rows import SortColumn, TopPage, TopRow, TopView
from watchkeeper.cli.fleet.top_screen import TopApp
from watchkeeper.client.typed import Client
from watchkeeper.errors import HubError, StartRefused
from watchkeeper.kit import clock
from watchkeeper.readers.nvml import choice

Story = Callable[[TopApp, "Pilot[None]"], Awaitable[None]]
PATIENCE_SECONDS = 60.0


def play(source: top_sources.PageSource, story: Story, *, size: tuple[int, int] = (80, 24)) -> None:
    async def run() -> None:
        app = TopApp(source, TopView(), interval_seconds=0.2)
        async with app.run_test(size=size) as pilot:
            await until(pilot, lambda: app.shown is not None or "not current" in head(app))
            await story(app, pilot)

    asyncio.run(run())


async def until(pilot: Pilot[None], condition: Callable[[], object]) -> None:
    deadline = asyncio.get_running_loop().time() + PATIENCE_SECONDS
    while not condition():
        assert asyncio.get_running_loop().time() < deadline, "it never came true"
        await pilot.pause(0.02)


def head(app: TopApp) -> str:
    return str(app.query_one("#head", Static).render())


def lines(app: TopApp) -> list[list[str]]:
    table: DataTable[str] = app.query_one("#gpus", DataTable)
    return [[str(cell) for cell in table.get_row_at(at)] for at in range(table.row_count)]


class Canned:
    """A source of rows that a test sets, and an error where it has one."""

    def __init__(self, rows: list[TopRow], error: HubError | None = None) -> None:
        self.rows, self.error, self.views = rows, error, list[TopView]()

    def read(self, view: TopView) -> TopPage:
        self.views.append(view)
        if self.error is not None:
            raise self.error
        return TopPage("hub test", tuple(self.rows[view.offset : view.offset + view.limit]), len(self.rows))


def many(count: int) -> list[TopRow]:
    return [TopRow(f"GPU-{at}", f"n{at // 8}", at % 8, "H200", util=float(at % 100)) for at in range(count)]


@pytest.mark.slow
def test_a_page_fills_the_terminal_and_keys_change_the_page() -> None:
    source = Canned(many(10_000))

    async def story(app: TopApp, pilot: Pilot[None]) -> None:
        await until(pilot, lambda: len(lines(app)) > 10)
        assert max(view.limit for view in source.views) < 24
        await pilot.press("pagedown")
        await until(pilot, lambda: lines(app)[0][0] != "n0/0")
        assert f"of {10_000:,} GPUs" in head(app)
        # The pane below may have taken some rows meanwhile: then a page back is shorter than the page forth was.
        await pilot.press("pageup", "pageup")
        await until(pilot, lambda: lines(app)[0][0] == "n0/0")

    play(source, story)


def test_an_unreachable_hub_leaves_the_last_page_marked_as_stale() -> None:
    source = Canned(many(4))

    async def story(app: TopApp, pilot: Pilot[None]) -> None:
        await until(pilot, lambda: len(lines(app)) == 4)
        source.error = HubError("no hub answers")
        await until(pilot, lambda: "stale: no hub answers" in head(app))
        assert len(lines(app)) == 4

    play(source, story)


def test_a_timer_or_an_answer_while_the_screen_closes_causes_no_error() -> None:
    async def story(app: TopApp, pilot: Pilot[None]) -> None:
        shown = app.shown
        assert shown is not None
        await app.query("Screen > *").remove()
        app.read()
        app._show_page(shown, app.view)
        app._show_page("the hub does not answer", app.view)

    play(Canned(many(1)), story)


def test_only_changed_cells_are_redrawn() -> None:
    source = Canned(many(4))

    async def story(app: TopApp, pilot: Pilot[None]) -> None:
        await until(pilot, lambda: len(lines(app)) == 4)
        table: DataTable[str] = app.query_one("#gpus", DataTable)
        drawn: list[str] = []
        update = table.update_cell

        def counted(row: str, column: str, *args: object, **named: object) -> None:
            drawn.append(f"{row} {column}")
            update(row, column, *args, **named)  # type: ignore[arg-type]

        table.update_cell = counted  # type: ignore[assignment,method-assign]
        source.rows = [TopRow("GPU-0", "n0", 0, "H200", util=77.0), *source.rows[1:]]
        await until(pilot, lambda: lines(app)[0][1] == "77%")
        assert set(drawn) == {"row 0 UTIL"}

    play(source, story)


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[product.Product]:
    with product.up(tmp_path_factory.mktemp("top")) as running:
        product.await_that(running.scraped)
        assert running.command("sim", "inject", "xid-79").returncode == 0
        product.await_that(running.incidents)
        yield running


@pytest.mark.slow
def test_gpus_of_a_hub_are_sorted_and_filtered_with_its_incidents(hub: product.Product) -> None:
    async def story(app: TopApp, pilot: Pilot[None]) -> None:
        await until(pilot, lambda: len(lines(app)) > 10)
        assert "of 64 GPUs" in head(app)
        assert "fell off the bus" in str(app.query_one("#below", Static).render())
        await pilot.press("s")
        await until(pilot, lambda: "by util" in head(app))
        numbers = [int(row[1].rstrip("%")) for row in lines(app)]
        assert numbers == sorted(numbers, reverse=True)
        await pilot.press("slash", *"fell_off", "enter")
        await until(pilot, lambda: "of 1 GPUs" in head(app))
        await until(pilot, lambda: lines(app)[0][1] == "–")
        await pilot.press("escape")
        await until(pilot, lambda: "of 64 GPUs" in head(app))

    play(top_sources.HubSource(Client(hub.url)), story)


@pytest.mark.slow
def test_in_a_pipe_top_prints_a_plain_table(hub: product.Product) -> None:
    printed = hub.command("top", "-s", "power", "-n", "3").stdout
    assert "\x1b" not in printed
    assert printed.splitlines()[0].split() == ["GPU", "UTIL", "MEMORY", "GiB", "TEMP", "POWER", "HOLDER"]
    assert "3 of 64 GPUs" in printed
    assert "fell off the bus" in printed


@pytest.mark.slow
def test_top_shows_local_gpus_with_the_reader_of_the_agent(fake: driver.FakeNvml, tmp_path: Path) -> None:
    fake.tell(1, "UtilizationRates.gpu", 42)
    fake.tell(1, ComputeProcesses=1)
    fake.tell(1, "ComputeProcesses.pid0", os.getpid())
    look = scan_readings.ReadingOptions(choice.choose_families(), interval_seconds=0.5, environment=fake.environment)
    with scan_readings.running_sampler(look, clock.ScaledClock()) as sampler:
        source = top_sources.LocalSource(sampler, node="n1", roots=node_facts.Roots(root=tmp_path))

        async def story(app: TopApp, pilot: Pilot[None]) -> None:
            await until(pilot, lambda: len(lines(app)) == 2 and lines(app)[1][1] == "42%")
            assert [row[0] for row in lines(app)] == ["n1/0", "n1/1"]
            await until(pilot, lambda: f"pid {os.getpid()}" in str(app.query_one("#below", Static).render()))

        play(source, story)
        page = source.read(TopView(SortColumn.UTIL))
        assert page.rows[0].index == 1
        assert [(line.gpu, line.pid) for line in page.programs] == [(1, os.getpid())]
        source.close()


def test_without_the_extra_the_error_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "watchkeeper.cli.fleet.top_screen")
    monkeypatch.setitem(sys.modules, "textual", None)
    with pytest.raises(StartRefused, match=r"needs the package textual.*pip install 'watchkeeper\[top\]'.*--once"):
        top._import_screen()
