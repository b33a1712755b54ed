"""The table of signs: each finds its own example, by its words, and names a cause that exists."""

from __future__ import annotations

import io
import re

import pytest

from tests.doctor.asking import ask
from watchkeeper.catalogue import causes
from watchkeeper.doctor import ranking, report, scan, signatures
from watchkeeper.doctor.facts import DoctorFacts
from watchkeeper.doctor.signatures import Role
from watchkeeper.errors import PackError

SIGNS = [sign for sign in signatures.table().signs.values() if sign.pattern is not None]


@pytest.mark.parametrize("sign", [sign for sign in SIGNS if sign.words], ids=lambda sign: sign.id)
def test_a_sign_matches_its_own_example(sign: signatures.Sign) -> None:
    facts = DoctorFacts()
    scan.scan("example", io.BytesIO(sign.example.encode()), facts, table=signatures.table())
    assert sign.id in set(facts.signs())


@pytest.mark.parametrize("sign", [sign for sign in SIGNS if not sign.words], ids=lambda sign: sign.id)
def test_a_sign_of_listings_matches_its_own_example(sign: signatures.Sign) -> None:
    assert re.search(sign.pattern or "", sign.example, re.MULTILINE)
    assert any(text in sign.example for text in sign.needs)


def test_every_sign_that_names_a_cause_says_why_and_where_that_is_known_from() -> None:
    for sign in signatures.table().signs.values():
        assert sign.source, sign.id
        if sign.role is Role.CAUSE and sign.cause:
            assert sign.why.endswith("."), sign.id
            assert 0 < sign.confidence <= 0.95, sign.id


def test_every_cause_that_a_sign_names_has_a_step_with_its_risk() -> None:
    named = {sign.cause for sign in signatures.table().signs.values()} | {
        cause for sign in signatures.table().signs.values() for cause in sign.also
    }
    # What to do about an unknown one depends on what was given.
    assert report.collection_steps(())
    assert named - set(report._steps_by_cause()) - {"unknown"} == {"", signatures.BY_XID}
    assert set(report._steps_by_cause()) <= {row.cause for row in causes.all_causes()}


def test_a_row_that_names_no_real_cause_is_refused_with_its_file() -> None:
    row = {"id": "x", "cause": "gremlins", "pattern": "x", "example": "x", "source": "x", "words": "x"}
    with pytest.raises(PackError, match="unknown cause gremlins") as caught:
        signatures.read_row(row, file="signatures/x.toml")
    assert caught.value.where == "packs/signatures/x.toml"


def test_every_sign_in_unless_exists() -> None:
    signs = signatures.table().signs
    assert not [(sign.id, name) for sign in signs.values() for name in sign.unless if name not in signs]


def test_no_cause_is_its_own_consequence() -> None:
    for row in causes.all_causes():
        assert row.cause not in ranking.effects_of(row.cause)


def test_an_empty_input_cannot_be_judged_and_a_dull_log_has_nothing_wrong() -> None:
    assert ask("").verdict is report.DoctorVerdict.CANNOT_TELL
    assert ask("2026-08-10 10:00:00 INFO all is well\n").verdict is report.DoctorVerdict.NOTHING_FOUND
