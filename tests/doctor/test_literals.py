"""The texts that a pattern cannot do without: never missed, so that passing a line over is safe."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from watchkeeper.doctor import scan, signatures
from watchkeeper.readers.logs import kernel_log, log_text

SIGNS = [sign for sign in signatures.table().signs.values() if sign.pattern is not None]


@pytest.mark.parametrize(
    ("pattern", "clauses"),
    [
        ("Got completion from peer", [("got completion from peer",)]),
        ("(?:nothing free|few left) (?:gpus?)", [("few left", "nothing free"), (" gpu",)]),
        (r"(?i)exit ?code: (?P<code>\d+)", [("exit",), ("code: ",)]),
        (r"(?:abc)?\d+", []),
        ("a|bcd", []),
        ("(?=.*error).*nvlink", [("error",), ("nvlink",)]),
        ("(?!.*fatal)link down", [("link down",)]),
    ],
)
def test_the_clauses_of_a_pattern_are_texts_that_every_match_has(pattern: str, clauses: list[tuple[str, ...]]) -> None:
    assert list(signatures.required_texts(pattern)) == clauses


@pytest.mark.parametrize("sign", [sign for sign in SIGNS if sign.words], ids=lambda sign: sign.id)
def test_the_example_of_each_sign_passes_the_test_without_digits(sign: signatures.Sign) -> None:
    shape = sign.example.encode().translate(None, log_text.DIGITS)
    words = frozenset(shape.translate(log_text.LETTERS).split()) & frozenset(signatures.table().by_word)
    worth = scan.match_shape(shape, words)
    assert worth is not None
    assert sign.id in {matching_sign.id for matching_sign, _ in worth.signs}


@given(st.data())
def test_what_a_pattern_matches_always_has_a_text_of_each_clause(data: st.DataObject) -> None:
    sign = data.draw(st.sampled_from(SIGNS))
    text = data.draw(st.from_regex(sign.compiled))
    # Python matches a few letters beyond ASCII without regard to case that lower() keeps; logs do not have them.
    if text.isascii():
        assert all(
            any(required in text.lower() for required in texts)
            for texts in signatures.required_texts(sign.pattern or "")
        )


def test_every_kernel_line_has_a_word_by_which_the_scan_finds_it() -> None:
    for needle, _, _ in kernel_log.PATTERNS:
        words = set(needle.encode().translate(scan.log_text.LETTERS, b"0123456789").split())
        is_part = needle in (
            "no details found",
            "fallen off the bus",
            "RmInitAdapter",
            "ut of memory: K",
            "hardware memory ",
        )
        assert is_part or words & scan.KERNEL_WORDS, needle
