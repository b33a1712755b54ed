"""Secrets are hidden by their format or by the word before them; names are replaced, and nothing else changes."""

from __future__ import annotations

import pytest

from watchkeeper.kit import redaction

SLOW = ("-----BEGIN PRIVATE KEY-----", "-eyJ", "eyJaaaaaaaaa.aaaaaaaa")
JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJhZGEifQ.c2lnbmF0dXJl"


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("Authorization: Bearer 8f43c0ffee8f43c0", "Authorization: [hidden]"),
        ('{"password": "hunter2", "gpu": "3"}', '{"password": "[hidden]", "gpu": "3"}'),
        ("WATCHKEEPER_TOKEN=abcdef WANDB_API_KEY='0123456789'", "WATCHKEEPER_TOKEN=[hidden] WANDB_API_KEY='[hidden]'"),
        ("agent --token s3cret-s3cret --node n1", "agent --token [hidden] --node n1"),
        ("pull https://ada:pw@registry.local/x", "pull https://[hidden]@registry.local/x"),
        (f"cookie {JWT}", "cookie [hidden]"),
        (f"session-{JWT} v1.2", "session-[hidden] v1.2"),
        ("key AKIAIOSFODNN7EXAMPLE here", "key [hidden] here"),
        ("hf_abcdefghijklmnopqrst", "[hidden]"),
        ("-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY-----", "[hidden]"),
    ],
)
def test_a_secret_does_not_leave(text: str, clean: str) -> None:
    assert redaction.hide_secrets(text) == clean


@pytest.mark.parametrize(
    "text",
    [
        "NVRM: Xid (PCI:0000:1b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
        "GPU-92abf67a-b141-48ae-967e-8977cd8c3781 0324018045673 96.00.D9.00.01",
        "18 tokens generated per second, the token is short",
        '{"order": "watchkeeper:INC-7/3-reset_gpu", "result": "done"}',
    ],
)
def test_text_that_a_vendor_needs_is_kept(text: str) -> None:
    assert redaction.hide_secrets(text) == text


def test_names_are_replaced_whole_and_everywhere_alike() -> None:
    names = {**redaction.pseudonyms(["gpu-1", "gpu-1-b", ""], "node"), **redaction.pseudonyms(["ada"], "person")}
    text = "ada on gpu-1 and gpu-1-b, adage, gpu-12, gpu-1."
    assert redaction.replace_names(text, names) == "person-1 on node-1 and node-2, adage, gpu-12, node-1."
    assert redaction.replace_names(text, {}) == text


@pytest.mark.timeout(60)
@pytest.mark.parametrize("piece", ["a.", "eyJaaaaaaaa-", "secret.", "--token", "http://", "bearer ", *SLOW])
def test_adversarial_text_is_redacted_in_linear_time(piece: str) -> None:
    assert redaction.hide_secrets(piece * (200_000 // len(piece)))
