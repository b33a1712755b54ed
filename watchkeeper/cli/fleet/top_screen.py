"""The live screen of `watchkeeper top`: a table of GPUs, a pane of programs or incidents, and the keys.

A thread reads pages from the source, so keys work while a hub is slow. Only changed cells are redrawn, which avoids
flicker over ssh. The screen fits into 80 columns and 24 lines.
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

from watchkeeper.cli.fleet import top_rows
from watchkeeper.cli.fleet.top_sources import PageSource
from watchkeeper.client import answers
from watchkeeper.errors import WatchkeeperError

WIDTHS = (17, 5, 11, 5, 6, 24)
COLOURS = {"critical": "bold red", "warning": "yellow", "info": "cyan"}
# Highlighted from here on; real limits differ by GPU model.
HOT_CELSIUS = 85.0
MAX_PANE_LINES = 5


class TopApp(App[None]):
    """The app; `view` is the selected page, `shown` the page on the screen."""

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
        # Priority over the table's own keys, which scroll only within the page.
        Binding("pagedown", "turn(1)", "next", key_display="PgDn", priority=True),
        Binding("pageup", "turn(-1)", "prev", key_display="PgUp", priority=True),
        Binding("escape", "clear", "clear", show=False),
    ]
    ENABLE_COMMAND_PALETTE = False

    def __init__(self, source: PageSource, view: top_rows.TopView, *, interval_seconds: float) -> None:
        super().__init__()
        self._source = source
        self._interval_seconds = interval_seconds
        self.view = view
        self.shown: top_rows.TopPage | None = None
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
        for name, width in zip(top_rows.HEADER, WIDTHS, strict=True):
            table.add_column(name, key=name, width=width)
        self._resize_last_column(table)
        table.focus()
        self.set_interval(self._interval_seconds, self.read)
        self.call_after_refresh(self.read)

    def on_resize(self, event: events.Resize) -> None:
        """Give the last column the rest of the width; each column has two characters of padding."""
        self._holder_width = max(10, event.size.width - sum(WIDTHS[:-1]) - 2 * len(WIDTHS))
        # The first resize event comes before the table exists.
        for table in self.query("#gpus").results(DataTable):
            self._resize_last_column(table)
            self.call_after_refresh(self.read)

    def _resize_last_column(self, table: DataTable[Text]) -> None:
        for column in list(table.columns.values())[-1:]:
            column.width = self._holder_width
        table.refresh(layout=True)

    @property
    def _table(self) -> DataTable[Text]:
        return self.query_one("#gpus", DataTable)

    @property
    def _has_table(self) -> bool:
        """Whether the table exists: a timer or an answer may arrive while the screen closes."""
        return bool(self.query("#gpus"))

    def read(self) -> None:
        """Read a page with as many rows as fit on the screen, unless another read is running."""
        if self._is_reading or not self._has_table:
            return
        self._is_reading = True
        rows = max(1, self._table.size.height - 1)
        self.view = replace(self.view, limit=rows)
        self._read(self.view)

    @work(thread=True, exclusive=True)
    def _read(self, view: top_rows.TopView) -> None:
        try:
            page: top_rows.TopPage | str = self._source.read(view)
        except WatchkeeperError as error:
            page = str(error)
        if not get_current_worker().is_cancelled:
            self.call_from_thread(self._show_page, page, view)

    def _show_page(self, page: top_rows.TopPage | str, view: top_rows.TopView) -> None:
        self._is_reading = False
        if not self._has_table:
            return
        if isinstance(page, str):
            # The last page stays on the screen, marked as stale.
            self.query_one("#head", Static).update(Text(f"stale: {page}", style="bold red", overflow="ellipsis"))
        else:
            self.shown = page
            self._draw(page, view)
        if view != replace(self.view, limit=view.limit):
            self.read()

    def _draw(self, page: top_rows.TopPage, view: top_rows.TopView) -> None:
        last = min(view.offset + len(page.rows), page.total)
        order = f"{view.sort}{' reversed' if view.is_reversed else ''}"
        row_range = f"{view.offset + 1 if page.rows else 0:,}–{last:,} of {page.total:,} GPUs"
        text_filter = f"filter: {view.text}" if view.text else ""
        parts = filter(None, [page.title, page.counts, row_range, f"by {order}", text_filter])
        head = Text("  ".join(parts), overflow="ellipsis", no_wrap=True)
        if not page.total:
            head.append("  no GPU matches; Esc clears the filter" if view.text else "  no GPUs", style="yellow")
        if page.notes:
            head.append(f"  {'; '.join(page.notes)}", style="yellow")
        self.query_one("#head", Static).update(head)
        self._update_rows(page.rows)
        self._draw_pane(page)

    def _draw_pane(self, page: top_rows.TopPage) -> None:
        at = self._table.cursor_row
        chosen = page.rows[at] if 0 <= at < len(page.rows) else None
        self.query_one("#below", Static).update(pane_text(page, chosen))

    @on(DataTable.RowHighlighted)
    def _redraw_pane(self) -> None:
        if self.shown is not None:
            self._draw_pane(self.shown)

    def _update_rows(self, rows: tuple[top_rows.TopRow, ...]) -> None:
        """Update the table cell by cell; the cursor keeps its line."""
        table = self._table
        while table.row_count > len(rows):
            table.remove_row(table.coordinate_to_cell_key((table.row_count - 1, 0)).row_key)  # type: ignore[arg-type]
        for at, row in enumerate(rows):
            texts = style_cells(row, self._holder_width)
            if at >= table.row_count:
                table.add_row(*texts, key=f"row {at}")
                continue
            for name, text in zip(top_rows.HEADER, texts, strict=True):
                if table.get_cell(f"row {at}", name) != text:
                    table.update_cell(f"row {at}", name, text)

    def action_sort(self) -> None:
        names = list(top_rows.SortColumn)
        self._change_view(sort=names[(names.index(self.view.sort) + 1) % len(names)])

    def action_reverse(self) -> None:
        self._change_view(is_reversed=not self.view.is_reversed)

    def action_turn(self, pages: int) -> None:
        total = 0 if self.shown is None else self.shown.total
        offset = self.view.offset + pages * self.view.limit
        if 0 <= offset < total or offset < 0 < self.view.offset:
            self._change_view(offset=max(0, offset))

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
        self._change_view(text="")

    def on_input_submitted(self, _: Input.Submitted) -> None:
        self.query_one("#filter", Input).display = False
        self._table.focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        self._change_view(text=event.value)

    def _change_view(self, **changes: object) -> None:
        """Change sort, filter or page; without an offset, go to the first page."""
        self.view = replace(self.view, **{"offset": 0, **changes})  # type: ignore[arg-type]
        self.read()


def style_cells(row: top_rows.TopRow, holder_width: int) -> tuple[Text, ...]:
    *shown, holder = top_rows.format_cells(row)
    texts = [Text(text, overflow="ellipsis", no_wrap=True) for text in (*shown, shorten_middle(holder, holder_width))]
    for text in texts[1:5]:
        text.justify = "right"
        if text.plain == top_rows.UNKNOWN:
            text.stylize("dim")
    if row.celsius is not None and row.celsius >= HOT_CELSIUS:
        texts[3].stylize("yellow")
    if row.problem:
        texts[0].stylize("bold red")
        texts[5].stylize("bold red", max(0, texts[5].plain.rfind("! ")))
    return tuple(texts)


def shorten_middle(text: str, width: int) -> str:
    """Cut the middle of a long name: pods of one job differ at the end."""
    if len(text) <= width:
        return text
    head = (width - 1) // 2
    return f"{text[:head]}…{text[len(text) - (width - 1 - head) :]}"


def pane_text(page: top_rows.TopPage, chosen: top_rows.TopRow | None) -> Text:
    lines = [*map(_incident_line, page.incidents), *map(_program_line, page.programs)]
    if len(lines) > MAX_PANE_LINES:
        omitted = len(lines) - MAX_PANE_LINES + 1
        lines = [*lines[: MAX_PANE_LINES - 1], Text(f"and {omitted} more; see --once", style="dim")]
    if not lines:
        lines = [Text("no open incidents, no programs", style="dim")]
    if chosen is not None:
        details = (chosen.name, chosen.model, chosen.holder, chosen.uuid)
        lines = [Text("  ".join(part for part in details if part), style="bold"), *lines]
    return Text("\n", no_wrap=True, overflow="ellipsis").join(lines)


def _incident_line(card: answers.IncidentCard) -> Text:
    line = Text(f"{card.severity.value:<9}", style=COLOURS.get(card.severity.value, ""))
    return line.append(f"{card.id:<9}{card.title}", style="default not bold")


def _program_line(program: top_rows.ProgramLine) -> Text:
    busy = "" if program.busy_percent is None else f"  {program.busy_percent}%"
    details = "  ".join(part for part in (program.user, program.command, program.workload) if part)
    return Text(f"gpu {program.gpu:<3} pid {program.pid:<8} {details}{busy}")
