"""Render a cost report or a team's monthly statement as one HTML page, for the screen and for A4 paper.

The page loads no resources and has no scripts, and all values are escaped. `watchkeeper cost report --format html` and
`watchkeeper cost statement` write it.
"""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from importlib import resources
from typing import Any
from zoneinfo import ZoneInfo

from watchkeeper.accounting import report_files, usage

# People do not read longer tables; the rest is one row.
MAX_ROWS = 200
COLUMNS = ("allocated", "used", "wasted", "spare", "unmeasured", "idle", "lost", "unknown", "kwh")


@dataclass(frozen=True, slots=True)
class StatementPage:
    title: str
    report: Mapping[str, Any]
    zone: ZoneInfo
    jobs: Mapping[str, Any] | None = None
    waste: Sequence[Mapping[str, Any]] = ()
    budget: Mapping[str, Any] | None = None


def render_statement(page: StatementPage) -> str:
    style = (resources.files("watchkeeper.packs") / "statement.css").read_text(encoding="utf-8")
    report = page.report
    since, until = (f"{datetime.fromtimestamp(report[name], page.zone):%Y-%m-%d %H:%M}" for name in ("since", "until"))
    definitions = "".join(
        f"<div><dt>{_escape(term)}</dt><dd>{_escape(text)}</dd></div>" for term, text in usage.DEFINITIONS.items()
    )
    notes = "".join(f"<li>{_escape(note)}</li>" for note in report["notes"])
    shared_rows = "".join(
        f'<tr><td>{_escape(item)}</td><td class="n">{money:,.2f}</td></tr>' for item, money in report["shared"].items()
    )
    shared_title = "Unallocated GPUs and overhead" if report["policy"] == "none" else "Shared cost"
    heading = f"<h2>{shared_title}</h2><p>{_escape(report['policy_words'])}.</p>"
    shared_cost = f"<section>{heading}<table><tbody>{shared_rows}</tbody></table></section>"
    body = [
        f"<header><h1>{_escape(page.title)}</h1><p>{since} to {until}, {_escape(str(page.zone))}</p></header>",
        _render_figures(page),
        _render_table(f"By {', '.join(report['by'])}", report),
        "" if page.jobs is None else _render_table("Jobs in this statement", page.jobs),
        _render_waste(page),
        shared_cost if report["shared"] else "",
        _render_prices(report),
        f"<section><h2>Notes</h2><ul>{notes}</ul></section>" if notes else "",
        f'<section><h2>Definitions</h2><dl class="words">{definitions}</dl></section>',
    ]
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{_escape(page.title)}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{style}</style></head>\n<body>{''.join(body)}</body></html>\n"
    )


def _render_figures(page: StatementPage) -> str:
    report, currency = page.report, page.report["currency"]
    allocated, used, wasted, unmeasured = (
        sum(line["hours"][name] for line in report["lines"]) for name in ("allocated", "used", "wasted", "unmeasured")
    )
    measured = allocated - unmeasured
    # A table of jobs has no energy, and a GPU always uses some: zero means not measured.
    energy = f"{report['kwh']:,.1f} kWh" + (f" × PUE {report['pue']:g}" if report["pue"] else "")
    figures = [
        ("cost", report_files.format_money(report["money"], currency)),
        ("allocated", f"{allocated:,.1f} GPU-hours"),
        ("used", f"{used:,.1f} GPU-hours" + (f" ({used / measured:.0%})" if measured > 0 else "")),
        ("wasted", f"{wasted:,.1f} GPU-hours"),
        ("energy", energy if report["kwh"] else "not measured"),
    ]
    budget = page.budget
    if budget is not None and budget["budget"] is not None:
        interval = "" if budget["low"] is None else f" (80 %: {budget['low']:,.0f} to {budget['high']:,.0f})"
        forecast = report_files.format_money(budget["forecast"], currency) + interval
        figures.append(("budget this month", report_files.format_money(budget["budget"], currency)))
        figures.append(("forecast for the month", f"{forecast}: {budget['state'].replace('_', ' ')}"))
    cells = "".join(f"<div><dt>{_escape(name)}</dt><dd>{_escape(value)}</dd></div>" for name, value in figures)
    return f'<dl class="figures">{cells}</dl>'


def _render_table(title: str, report: Mapping[str, Any]) -> str:
    names, lines = list(report["by"]), list(report["lines"])
    columns = [name for name in COLUMNS if any(line["hours"][name] for line in lines)]
    head = "".join(f"<th>{_escape(name)}</th>" for name in names)
    column_titles = [name.replace("kwh", "kWh") for name in columns]
    head += "".join(f'<th class="n">{name}</th>' for name in [*column_titles, "shared", "cost"])
    rows = [_render_row([line[name] for name in names], line, columns) for line in lines[:MAX_ROWS]]
    empty_cells, rest = [""] * (len(names) - 1), lines[MAX_ROWS:]
    if rest:
        amounts = [line["money"] for line in rest if line["money"] is not None]
        total = {
            "money": sum(amounts) if amounts else None,
            "shared": sum(line["shared"] for line in rest),
            "hours": {name: sum(line["hours"][name] for line in rest) for name in COLUMNS},
        }
        rows.append(_render_row([f"{len(rest)} more", *empty_cells], total, columns))
    foot = _render_row(["total", *empty_cells], report["total"], columns)
    return (
        f"<section><h2>{_escape(title)}</h2><table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody>"
        f"<tfoot>{foot}</tfoot></table><p>Hours are GPU-hours; money is in {_escape(report['currency'])}.</p></section>"
    )


def _render_row(names: Sequence[str], line: Mapping[str, Any], columns: Sequence[str]) -> str:
    numbers = [f"{line['hours'][name]:,.1f}" for name in columns]
    numbers += [report_files.format_money(line[name]) for name in ("shared", "money")]
    cells = [f"<td>{_escape(name)}</td>" for name in names] + [f'<td class="n">{number}</td>' for number in numbers]
    return f"<tr>{''.join(cells)}</tr>"


def _render_waste(page: StatementPage) -> str:
    if not page.waste:
        return ""
    rows = "".join(
        f"<tr><td>{_escape(wasted['team'])}</td><td>{_escape(wasted['user'])}</td><td>{_escape(wasted['job'])}</td>"
        f'<td class="n">{wasted["gpu_hours"]:,.1f}</td>'
        f'<td class="n">{report_files.format_money(wasted["money"])}</td></tr>'
        for wasted in page.waste
    )
    head = '<th>team</th><th>user</th><th>job</th><th class="n">wasted</th><th class="n">money</th>'
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
    return f"<section><h2>Allocated and idle</h2>{table}</section>"


def _render_prices(report: Mapping[str, Any]) -> str:
    rows = ""
    for rate in report["rates"]:
        source = f"{rate['source']} (checked {rate['checked']})" if rate["checked"] else str(rate["source"])
        rows += (
            f'<tr><td>{_escape(rate["of"])}</td><td class="w">{_escape(rate["kind"].replace("_", " "))}</td>'
            f'<td class="n">{rate["per_gpu_hour"]:,.2f}</td><td>{_escape(source)}</td></tr>'
        )
    if not rows:
        return ""
    head = '<th>GPU</th><th>pricing</th><th class="n">per hour</th><th>source</th>'
    return f"<section><h2>Prices</h2><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></section>"


def _escape(value: str) -> str:
    return html.escape("".join(letter if letter.isprintable() else "\ufffd" for letter in str(value)))
