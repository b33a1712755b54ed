"""The screen of `watchkeeper top`: one table, the programs or incidents below it, and the keys at the foot.

Pages come from a source in a thread, so that a slow hub never freezes the keys; only cells that differ are drawn
again, so that nothing flickers over ssh. Everything fits into 80 columns and 24 lines.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from rich.text import Text
from textual import events, on, work
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import DataTable, Footer, Input, Static
from textual.worker import get_current_worker

from watchkeeper.cli.fleet.top_rows import (
    HEADER,
    NOTHING,
    IncidentLine,
    ProgramLine,
    SortColumn,
    TopPage,
    TopRow,
    TopView,
    cells,
)
from watchkeeper.cli.fleet.top_sources import PageSource
from watchkeeper.errors import WatchkeeperError

WIDTHS = (17, 5, 11, 5, 6, 24)
COLOURS = {"critical": "bold red", "warning": "yellow", "info": "cyan"}
# From where a reading is worth a look; not a limit, which differs by model.
HOT_CELSIUS = 85.0
MOST_BELOW = 5


class Top(App[None]):
    """`view` is what the person wants, `shown` the page that is on the screen."""

    CSS = """
    Screen { layout: vertical; }
    #head { height: 1; background: $boost; padding: 0 1; }
    #gpus { height: 1fr; }
    #below { height: auto; max-height: 7; padding: 0 1; border-top: solid $panel; }
    #filter { display: none; height: 3; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit", "quit"),
        Binding("slash", "filter", "filter", key_display="/"),
        Binding("s", "sort", "sort"),
        Binding("r", "reverse", "reverse"),
        Binding("i", "below", "pane"),
        # Before the table's own keys, which would stay on the page.
        Binding("pagedown", "turn(1)", "next", key_display="PgDn", priority=True),
        Binding("pageup", "turn(-1)", "prev", key_display="PgUp", priority=True),
        Binding("escape", "clear", "clear", show=False),
    ]
    ENABLE_COMMAND_PALETTE = False

    def __init__(self, source: PageSource, view: TopView, *, interval_seconds: float) -> None:
        super().__init__()
        self._source = source
        self._interval_seconds = interval_seconds
        self.view = view
        self.shown: TopPage | None = None
        self._is_reading = False
        self._holder_width = WIDTHS[-1]

    def compose(self) -> ComposeResult:
        yield Static("reading …", id="head")
        yield Input(placeholder="node, model, holder or cause; Enter to keep, Esc to clear", id="filter")
        yield DataTable(id="gpus", cursor_type="row", zebra_stripes=False)
        yield Static(id="below")
        yield Footer(show_command_palette=False)

    def on_mount(self) -> None:
        table = self._table
        for name, width in zip(HEADER, WIDTHS, strict=True):
            table.add_column(name, key=name, width=width)
        self._stretch(table)
        table.focus()
        self.set_interval(self._interval_seconds, self.read)
        self.call_after_refresh(self.read)

    def on_resize(self, event: events.Resize) -> None:
        """The last column takes what the terminal has to spare; two characters of each column are its padding."""
        self._holder_width = max(10, event.size.width - sum(WIDTHS[:-1]) - 2 * len(WIDTHS))
        # The first size is told before there is a table.
        for table in self.query("#gpus").results(DataTable):
            self._stretch(table)
            self.call_after_refresh(self.read)

    def _stretch(self, table: DataTable[Text]) -> None:
        for column in list(table.columns.values())[-1:]:
            column.width = self._holder_width
        table.refresh(layout=True)

    @property
    def _table(self) -> DataTable[Text]:
        return self.query_one("#gpus", DataTable)

    @property
    def _is_there(self) -> bool:
        """Whether there is anything to draw on: a timer or an answer may come while the screen is taken down."""
        return bool(self.query("#gpus"))

    def read(self) -> None:
        """Ask for a page of as many rows as fit; while one is on its way, no other is asked for."""
        if self._is_reading or not self._is_there:
            return
        self._is_reading = True
        room = max(1, self._table.size.height - 1)
        self.view = replace(self.view, limit=room)
        self._read(self.view)

    @work(thread=True, exclusive=True)
    def _read(self, view: TopView) -> None:
        try:
            page: TopPage | str = self._source.read(view)
        except WatchkeeperError as error:
            page = str(error)
        if not get_current_worker().is_cancelled:
            self.call_from_thread(self._take, page, view)

    def _take(self, page: TopPage | str, view: TopView) -> None:
        self._is_reading = False
        if not self._is_there:
            return
        if isinstance(page, str):
            # What is on the screen stays there, and says that it is old.
            self.query_one("#head", Static).update(Text(f"not current: {page}", style="bold red", overflow="ellipsis"))
        else:
            self.shown = page
            self._draw(page, view)
        if view != replace(self.view, limit=view.limit):
            self.read()

    def _draw(self, page: TopPage, view: TopView) -> None:
        last = min(view.offset + len(page.rows), page.total)
        order = f"{view.sort}{' reversed' if view.is_reversed else ''}"
        span = f"{view.offset + 1 if page.rows else 0:,}–{last:,} of {page.total:,} GPUs"
        parts = [page.title, span, f"by {order}", *([f"filter: {view.text}"] if view.text else [])]
        head = Text("  ".join(parts), overflow="ellipsis", no_wrap=True)
        if not page.total:
            head.append("  no GPU fits; Esc clears the filter" if view.text else "  no GPU is known", style="yellow")
        if page.notes:
            head.append(f"  {'; '.join(page.notes)}", style="yellow")
        self.query_one("#head", Static).update(head)
        self._fill(page.rows)
        self._draw_below(page)

    def _draw_below(self, page: TopPage) -> None:
        at = self._table.cursor_row
        chosen = page.rows[at] if 0 <= at < len(page.rows) else None
        self.query_one("#below", Static).update(below(page, chosen))

    @on(DataTable.RowHighlighted)
    def _show_below(self) -> None:
        if self.shown is not None:
            self._draw_below(self.shown)

    def _fill(self, rows: tuple[TopRow, ...]) -> None:
        """Bring the table to these rows, cell by cell; rows keep their place on the screen, so the cursor stays."""
        table = self._table
        while table.row_count > len(rows):
            table.remove_row(table.coordinate_to_cell_key((table.row_count - 1, 0)).row_key)  # type: ignore[arg-type]
        for at, row in enumerate(rows):
            texts = styled(row, self._holder_width)
            if at >= table.row_count:
                table.add_row(*texts, key=f"row {at}")
                continue
            for name, text in zip(HEADER, texts, strict=True):
                if table.get_cell(f"row {at}", name) != text:
                    table.update_cell(f"row {at}", name, text)

    def action_sort(self) -> None:
        names = list(SortColumn)
        self._change(sort=names[(names.index(self.view.sort) + 1) % len(names)])

    def action_reverse(self) -> None:
        self._change(is_reversed=not self.view.is_reversed)

    def action_turn(self, pages: int) -> None:
        total = 0 if self.shown is None else self.shown.total
        offset = self.view.offset + pages * self.view.limit
        if 0 <= offset < total or offset < 0 < self.view.offset:
            self._change(offset=max(0, offset))

    def action_below(self) -> None:
        pane = self.query_one("#below", Static)
        pane.display = not pane.display
        self.call_after_refresh(self.read)

    def action_filter(self) -> None:
        field = self.query_one("#filter", Input)
        field.display = True
        field.focus()

    def action_clear(self) -> None:
        field = self.query_one("#filter", Input)
        field.value, field.display = "", False
        self._table.focus()
        self._change(text="")

    def on_input_submitted(self, _: Input.Submitted) -> None:
        self.query_one("#filter", Input).display = False
        self._table.focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        self._change(text=event.value)

    def _change(self, **wish: object) -> None:
        """A new wish begins at the first page, and is answered at once."""
        self.view = replace(self.view, **{"offset": 0, **wish})  # type: ignore[arg-type]
        self.read()


def styled(row: TopRow, holder_width: int) -> tuple[Text, ...]:
    """The cells of a row; numbers to the right, and what deserves a look in colour as well as in words."""
    *shown, holder = cells(row)
    texts = [Text(text, overflow="ellipsis", no_wrap=True) for text in (*shown, shortened(holder, holder_width))]
    for text in texts[1:5]:
        text.justify = "right"
        if text.plain == NOTHING:
            text.stylize("dim")
    if row.celsius is not None and row.celsius >= HOT_CELSIUS:
        texts[3].stylize("yellow")
    if row.trouble:
        texts[0].stylize("bold red")
        texts[5].stylize("bold red", max(0, texts[5].plain.rfind("! ")))
    return tuple(texts)


def shortened(text: str, width: int) -> str:
    """A long name without its middle: pods of one job differ at the end."""
    if len(text) <= width:
        return text
    head = (width - 1) // 2
    return f"{text[:head]}…{text[len(text) - (width - 1 - head) :]}"


def below(page: TopPage, chosen: TopRow | None) -> Text:
    """The chosen GPU in full, then the incidents of a hub or the programs of a node; and how many more there are."""
    lines = [_incident(one) for one in page.incidents] + [_program(one) for one in page.programs]
    if len(lines) > MOST_BELOW:
        lines = [*lines[: MOST_BELOW - 1], Text(f"and {len(lines) - MOST_BELOW + 1} more; see --once", style="dim")]
    if not lines:
        lines = [Text("no open incidents, no programs to show", style="dim")]
    if chosen is not None:
        said = (chosen.name, chosen.model, chosen.holder, chosen.uuid)
        lines = [Text("  ".join(part for part in said if part), style="bold"), *lines]
    return Text("\n", no_wrap=True, overflow="ellipsis").join(lines)


def _incident(one: IncidentLine) -> Text:
    line = Text(f"{one.severity:<9}", style=COLOURS.get(one.severity, ""))
    return line.append(f"{one.id:<9}{one.title}", style="default not bold")


def _program(one: ProgramLine) -> Text:
    busy = "" if one.busy_percent is None else f"  {one.busy_percent}%"
    whose = "  ".join(part for part in (one.user, one.command, one.workload) if part)
    return Text(f"gpu {one.gpu:<3} pid {one.pid:<8} {whose}{busy}")
