"""A cost report or a team's monthly statement as one HTML page that reads well on screen and on A4 paper.

The page loads nothing, runs nothing, and everything that came from outside is escaped. `watchkeeper cost report
--format html` and `cost statement` write it.
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

# A page is read by people; beyond this it is a file for programs.
MOST_ROWS = 200
COLUMNS = ("allocated", "used", "wasted", "spare", "unmeasured", "idle", "lost", "unknown", "kwh")


@dataclass(frozen=True, slots=True)
class StatementPage:
    """What a page shows: a report, the jobs behind it, and who wastes what."""

    title: str
    report: Mapping[str, Any]
    zone: ZoneInfo
    jobs: Mapping[str, Any] | None = None
    waste: Sequence[Mapping[str, Any]] = ()
    budget: Mapping[str, Any] | None = None


def render_statement(page: StatementPage) -> str:
    style = (resources.files("watchkeeper.packs") / "statement.css").read_text(encoding="utf-8")
    report = page.report
    since, until = (_moment(report[name], page.zone) for name in ("since", "until"))
    body = [
        f"<header><h1>{_text(page.title)}</h1><p>{since} to {until}, {_text(str(page.zone))}</p></header>",
        _figures(page),
        _table(f"By {', '.join(report['by'])}", report),
    ]
    if page.jobs is not None:
        body.append(_table("Jobs behind these numbers", page.jobs))
    body += [_waste(page), _shared(report), _rates(report), _notes(report), _words()]
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{_text(page.title)}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{style}</style></head>\n<body>{''.join(body)}</body></html>\n"
    )


def _figures(page: StatementPage) -> str:
    report = page.report
    hours = [line["hours"] for line in report["lines"]]
    allocated = sum(one["allocated"] for one in hours)
    used, wasted = (sum(one[name] for one in hours) for name in ("used", "wasted"))
    unmeasured = sum(one["unmeasured"] for one in hours)
    measured = allocated - unmeasured
    shown = [
        ("cost", report_files.format_money(report["money"], report["currency"])),
        ("allocated", f"{allocated:,.1f} GPU-hours"),
        ("used", f"{used:,.1f} GPU-hours" + (f" ({used / measured:.0%})" if measured > 0 else "")),
        ("wasted", f"{wasted:,.1f} GPU-hours"),
        ("energy", _energy(report)),
    ]
    if page.budget is not None and page.budget["budget"] is not None:
        shown.append(("budget of the month", report_files.format_money(page.budget["budget"], report["currency"])))
        shown.append(("expected at its end", _expected(page.budget, report["currency"])))
    cells = "".join(f"<div><dt>{_text(name)}</dt><dd>{_text(value)}</dd></div>" for name, value in shown)
    return f'<dl class="figures">{cells}</dl>'


def _energy(report: Mapping[str, Any]) -> str:
    """A table of jobs knows no energy, and a GPU that runs takes some: nought is not a measurement."""
    if not report["kwh"]:
        return "not measured"
    return f"{report['kwh']:,.1f} kWh" + (f" × PUE {report['pue']:g}" if report["pue"] else "")


def _expected(budget: Mapping[str, Any], currency: str) -> str:
    interval = ""
    if budget["low"] is not None:
        interval = f" (80 %: {budget['low']:,.0f} to {budget['high']:,.0f})"
    return f"{report_files.format_money(budget['forecast'], currency)}{interval}: {budget['state'].replace('_', ' ')}"


def _table(title: str, report: Mapping[str, Any]) -> str:
    names, lines = list(report["by"]), list(report["lines"])
    columns = [name for name in COLUMNS if any(line["hours"][name] for line in lines)]
    head = "".join(f"<th>{_text(name)}</th>" for name in names)
    said = [name.replace("kwh", "kWh") for name in columns]
    head += "".join(f'<th class="n">{name}</th>' for name in [*said, "shared", "cost"])
    rows = [_row([line[name] for name in names], line, columns) for line in lines[:MOST_ROWS]]
    left = lines[MOST_ROWS:]
    if left:
        rows.append(_row([f"{len(left)} more", *[""] * (len(names) - 1)], _sum(left), columns))
    foot = _row(["total", *[""] * (len(names) - 1)], report["total"], columns)
    return (
        f"<section><h2>{_text(title)}</h2><table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody>"
        f"<tfoot>{foot}</tfoot></table><p>Hours are GPU-hours; money is in {_text(report['currency'])}.</p></section>"
    )


def _row(names: Sequence[str], line: Mapping[str, Any], columns: Sequence[str]) -> str:
    cells = "".join(f"<td>{_text(name)}</td>" for name in names)
    hours = line["hours"]
    numbers = [f"{hours[name]:,.1f}" for name in columns]
    numbers += [report_files.format_money(line["shared"]), report_files.format_money(line["money"])]
    cells += "".join(f'<td class="n">{number}</td>' for number in numbers)
    return f"<tr>{cells}</tr>"


def _sum(lines: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    known = [line["money"] for line in lines if line["money"] is not None]
    return {
        "money": sum(known) if known else None,
        "shared": sum(line["shared"] for line in lines),
        "hours": {name: sum(line["hours"][name] for line in lines) for name in ("total", *COLUMNS)},
    }


def _waste(page: StatementPage) -> str:
    if not page.waste:
        return ""
    rows = "".join(
        f"<tr><td>{_text(one['team'])}</td><td>{_text(one['user'])}</td><td>{_text(one['job'])}</td>"
        f'<td class="n">{one["gpu_hours"]:,.1f}</td>'
        f'<td class="n">{report_files.format_money(one["money"])}</td></tr>'
        for one in page.waste
    )
    head = '<th>team</th><th>user</th><th>job</th><th class="n">wasted</th><th class="n">money</th>'
    return (
        "<section><h2>Held and not used</h2>"
        f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></section>"
    )


def _shared(report: Mapping[str, Any]) -> str:
    if not report["shared"]:
        return ""
    rows = "".join(
        f'<tr><td>{_text(item)}</td><td class="n">{money:,.2f}</td></tr>' for item, money in report["shared"].items()
    )
    title = "What nobody held" if report["policy"] == "none" else "Shared cost"
    said = f"<h2>{title}</h2><p>{_text(report['policy_words'])}.</p>"
    return f"<section>{said}<table><tbody>{rows}</tbody></table></section>"


def _rates(report: Mapping[str, Any]) -> str:
    rows = "".join(
        f'<tr><td>{_text(rate["of"])}</td><td class="w">{_text(rate["kind"].replace("_", " "))}</td>'
        f'<td class="n">{rate["per_gpu_hour"]:,.2f}</td><td>{_text(_source(rate))}</td></tr>'
        for rate in report["rates"]
    )
    if not rows:
        return ""
    head = '<th>GPU</th><th>paid</th><th class="n">an hour</th><th>source</th>'
    return f"<section><h2>Prices</h2><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></section>"


def _source(rate: Mapping[str, Any]) -> str:
    return f"{rate['source']} (checked {rate['checked']})" if rate["checked"] else str(rate["source"])


def _notes(report: Mapping[str, Any]) -> str:
    listed = "".join(f"<li>{_text(note)}</li>" for note in report["notes"])
    return f"<section><h2>To be read with these numbers</h2><ul>{listed}</ul></section>" if listed else ""


def _words() -> str:
    listed = "".join(f"<div><dt>{_text(word)}</dt><dd>{_text(said)}</dd></div>" for word, said in usage.WORDS.items())
    return f'<section><h2>Words</h2><dl class="words">{listed}</dl></section>'


def _moment(at: float, zone: ZoneInfo) -> str:
    return f"{datetime.fromtimestamp(at, zone):%Y-%m-%d %H:%M}"


def _text(value: str) -> str:
    return html.escape("".join(letter if letter.isprintable() else "\ufffd" for letter in str(value)))
