"""The times of templates, as `toTime` returns them: printed as Go prints them, with the methods of Go's time.Time.

`templates` calls the methods; `(… | toTime).Format "2006-01-02"` uses Go's layouts, which show how a reference time is
formatted.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

# Parts of Mon Jan 2 15:04:05 MST 2006, the longest of each kind first, and their strftime codes; times are in UTC.
NAMES = {"January": "%B", "Jan": "%b", "Monday": "%A", "Mon": "%a", "PM": "%p", "MST": "UTC"}
ZONES = {"Z07:00": "Z", "Z0700": "Z", "Z07": "Z", "-07:00": "+00:00", "-0700": "+0000", "-07": "+00"}
NUMBERS = {
    "2006": "%Y",
    "002": "%j",
    "01": "%m",
    "02": "%d",
    "03": "%I",
    "04": "%M",
    "05": "%S",
    "06": "%y",
    "15": "%H",
}
LAYOUT_PARTS = NAMES | ZONES | NUMBERS
LAYOUT = re.compile("|".join([*map(re.escape, LAYOUT_PARTS), "pm", "_2(?!006)", r"[.,](?:0+|9+)(?!\d)", "[1-5]"]))


@dataclass(frozen=True, slots=True)
class Moment:
    at: datetime

    def __str__(self) -> str:
        return self.format("2006-01-02 15:04:05.999999999 -0700 MST")

    def format(self, layout: str) -> str:
        return LAYOUT.sub(lambda part: self._format_part(part[0]), layout)

    def _format_part(self, part: str) -> str:
        if part in LAYOUT_PARTS:
            return self.at.strftime(LAYOUT_PARTS[part])
        if part[0] in ".,":
            digits = f"{self.at.microsecond:06}".ljust(len(part) - 1, "0")[: len(part) - 1]
            shown = digits.rstrip("0") if part[1] == "9" else digits
            return part[0] + shown if shown else ""
        plain = {"pm": self.at.strftime("%p").lower(), "_2": f"{self.at.day:2}", "1": str(self.at.month)}
        plain |= {"2": str(self.at.day), "3": str((self.at.hour - 1) % 12 + 1)}
        return (plain | {"4": str(self.at.minute), "5": str(self.at.second)})[part]


METHODS: Mapping[str, Callable[..., Any]] = {
    "Format": lambda moment, layout: moment.format(str(layout)),
    "String": str,
    "UTC": lambda moment: moment,
    "Unix": lambda moment: int(moment.at.timestamp() // 1),
    "UnixMilli": lambda moment: int(moment.at.timestamp() * 1000 // 1),
    "Year": lambda moment: moment.at.year,
    "Month": lambda moment: moment.format("January"),
    "Day": lambda moment: moment.at.day,
    "Hour": lambda moment: moment.at.hour,
    "Minute": lambda moment: moment.at.minute,
    "Second": lambda moment: moment.at.second,
    "Weekday": lambda moment: moment.format("Monday"),
    "YearDay": lambda moment: int(moment.format("002")),
}
