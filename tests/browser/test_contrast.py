"""The tokens of the console in both themes: what is written meets WCAG 2.2 AA, what is drawn meets 3:1."""

from __future__ import annotations

import re

import pytest

from tests.support.paths import ROOT

STYLES = ROOT / "console" / "src" / "styles"
CSS = "\n".join(path.read_text() for path in sorted(STYLES.glob("*.css")))
GROUNDS = ("bg", "panel", "raise")
# SC 1.4.3 asks 4.5:1 for text, SC 1.4.11 asks 3:1 for shapes that carry a meaning.
WRITTEN = ("ink", "dim", "accent", "ok-text", "warn-text", "bad-text")
DRAWN = ("ok", "warn", "bad", "unknown", "c1", "c2", "c3", "c4", "c5", "c6")
RULES = {"dark": ":root {", "light": ':root[data-theme="light"] {'}


def tokens(theme: str) -> dict[str, str]:
    block = CSS[CSS.index(RULES[theme]) :]
    return dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", block[: block.index("}")]))


def luminance(colour: str) -> float:
    """Relative luminance as WCAG 2.2 defines it."""
    shares = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4 for share in shares]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_black_on_white_is_21_to_1_and_a_colour_on_itself_1_to_1() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#5aa9ff", "#5aa9ff") == 1


@pytest.mark.parametrize("theme", RULES)
def test_what_is_written_can_be_read_on_every_ground(theme: str) -> None:
    known = tokens(theme)
    ratios = {(name, ground): contrast(known[name], known[ground]) for name in WRITTEN for ground in GROUNDS}
    ratios["on-accent", "accent"] = contrast(known["on-accent"], known["accent"])
    assert {pair: round(ratio, 2) for pair, ratio in ratios.items() if ratio < 4.5} == {}


@pytest.mark.parametrize("theme", RULES)
def test_what_is_drawn_stands_out_from_every_ground(theme: str) -> None:
    known = tokens(theme)
    ratios = {(name, ground): contrast(known[name], known[ground]) for name in DRAWN for ground in GROUNDS}
    assert {pair: round(ratio, 2) for pair, ratio in ratios.items() if ratio < 3} == {}


def test_status_is_written_only_in_colours_made_for_writing() -> None:
    """`color: var(--bad)` would be read; a shape has a background, a border or a stroke instead."""
    rules = re.findall(r"([^{}]+){[^{}]*(?<!-)\bcolor: var\(--(?:ok|warn|bad|unknown)\)", CSS)
    glyphs = [rule.strip() for rule in rules if not re.search("legend|::before|straggler em", rule)]
    assert glyphs == []


def test_the_console_honours_a_wish_for_less_motion_and_shows_the_focus() -> None:
    assert "prefers-reduced-motion: reduce" in CSS
    assert re.search(r"^:focus-visible {\s*outline: 2px solid", CSS, re.MULTILINE)
