"""Binary files, endless lines, colours, odd encodings, bombs and traversal: safe, bounded and said clearly."""

from __future__ import annotations

import gzip
import io
import re
import tarfile
import time
import zipfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.doctor.asking import ask, causes
from watchkeeper.doctor import examine, recognise, report, signatures
from watchkeeper.readers import bundles
from watchkeeper.readers.logs import log_text

LOST = b"NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.\n"


def examine_file(path: Path) -> list[str]:
    return causes(examine.examine(bundles.open_all([path])))


def test_a_binary_file_is_reported_as_binary() -> None:
    answer = ask(bytes(range(256)) * 100)
    assert (answer.inputs[0].kind, answer.verdict.value) == ("binary", 3)


def test_a_fault_in_a_line_of_ten_megabytes_is_found() -> None:
    answer = ask(b"x" * 6_000_000 + b" " + LOST.strip() + b" " + b"y" * 4_000_000 + b"\nnext\n")
    assert causes(answer)[0] == "gpu_fell_off_bus"
    assert len(answer.findings[0].evidence[0].text) <= 400


@pytest.mark.slow
def test_numbers_without_end_in_any_sign_are_read_past() -> None:
    signs = [sign for sign in signatures.table().signs.values() if sign.example]
    endless = [re.sub(r"\d+", "9" * 5000, sign.example) for sign in signs]
    # All at once, and each beside a real fault.
    assert ask("\n".join(endless)).inputs[0].problem is None
    for text in endless[::7]:
        assert "gpu_fell_off_bus" in causes(ask(text.encode() + b"\n" + LOST))


@pytest.mark.parametrize("piece", ["9", "a", "1.", " ", "a-", "/", "12 ", "a=1,", "1:", "[", "\n", " \n", "9%|"])
def test_no_pattern_takes_long_over_text_that_repeats(piece: str) -> None:
    text = (piece * 20_000)[:20_000]
    # Signs with words are looked for in single lines.
    in_lines = "\n" not in piece
    signs = [
        s.compiled for s in signatures.table().signs.values() if s.pattern is not None and (in_lines or not s.words)
    ]
    for pattern in [*signs, *(kind.pattern for kind in recognise.input_kinds())]:
        begun = time.thread_time()
        pattern.search(text)
        # A tenth at most; those that began anew at each character took two to twelve seconds.
        assert time.thread_time() - begun < 1, pattern.pattern


@pytest.mark.parametrize(
    "raw",
    [
        b"\x1b[31m" + LOST.strip() + b"\x1b[0m\r\n",
        b"caf\xe9 " + LOST,
        LOST.decode().encode("utf-16"),
        b"\xef\xbb\xbf" + LOST,
    ],
    ids=["colours and CRLF", "latin-1", "utf-16", "byte order mark"],
)
def test_colours_and_encodings_hide_nothing(raw: bytes) -> None:
    assert causes(ask(raw))[0] == "gpu_fell_off_bus"


def test_members_of_archives_are_read_and_a_path_that_leads_out_is_only_a_name(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "bundle.tar.gz", "w:gz") as archive:
        member = tarfile.TarInfo("../../etc/dmesg.log")
        member.size = len(LOST)
        archive.addfile(member, io.BytesIO(LOST))
        link = tarfile.TarInfo("link")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
    answer = examine.examine(bundles.open_all([tmp_path / "bundle.tar.gz"]))
    assert causes(answer)[0] == "gpu_fell_off_bus"
    assert len(answer.inputs) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["bundle.tar.gz"]


def test_a_zip_and_a_folder_are_read(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "bundle.zip", "w") as archive:
        archive.writestr("node/dmesg.txt", LOST)
    assert examine_file(tmp_path / "bundle.zip")[0] == "gpu_fell_off_bus"
    assert examine_file(tmp_path)[0] == "gpu_fell_off_bus"


@pytest.mark.slow
def test_a_bomb_is_stopped_with_both_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundles, "FREE_BYTES", 1 << 20)
    (tmp_path / "bomb.gz").write_bytes(gzip.compress(b"a" * (64 << 20)))
    answer = examine.examine(bundles.open_all([tmp_path / "bomb.gz"]))
    assert "unpacks to more than" in (answer.inputs[0].problem or "")


def test_archives_nested_too_deep_are_not_opened(tmp_path: Path) -> None:
    content = LOST
    for _ in range(bundles.MAX_DEPTH + 1):
        content = gzip.compress(content)
    (tmp_path / "deep.gz").write_bytes(content)
    answer = examine.examine(bundles.open_all([tmp_path / "deep.gz"]))
    assert "nested deeper than 3" in (answer.inputs[0].problem or "")


def test_many_small_bombs_are_one_large_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundles, "FREE_BYTES", 1 << 20)
    with zipfile.ZipFile(tmp_path / "bombs.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for number in range(40):
            archive.writestr(f"{number}.log", b"a" * (1 << 20))
    streams = []
    for stream in bundles.open_all([tmp_path / "bombs.zip"]):
        while stream.read(1 << 16):
            pass
        streams.append((stream.read_bytes, stream.problem or ""))
    assert sum(size for size, _ in streams) < 36 << 20
    assert "the whole input unpacks to more than" in streams[-1][1]


def test_members_of_archives_in_archives_count_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundles, "MAX_MEMBERS", 20)
    inner = io.BytesIO()
    with zipfile.ZipFile(inner, "w") as archive:
        for number in range(15):
            archive.writestr(f"{number}.log", "x")
    with zipfile.ZipFile(tmp_path / "outer.zip", "w") as archive:
        for number in range(15):
            archive.writestr(f"{number}.zip", inner.getvalue())
    streams = [(stream.read(1), stream.problem) for stream in bundles.open_all([tmp_path / "outer.zip"])]
    assert sum(piece == b"x" for piece, _ in streams) < 20
    assert any("more than 20 members" in (problem or "") for _, problem in streams)


def test_a_cut_off_gzip_says_how_far_it_was_read(tmp_path: Path) -> None:
    (tmp_path / "cut.gz").write_bytes(gzip.compress(LOST * 2000)[:-20])
    answer = examine.examine(bundles.open_all([tmp_path / "cut.gz"]))
    assert causes(answer)[0] == "gpu_fell_off_bus"
    assert "read failed after" in (answer.inputs[0].problem or "")


@given(st.binary(max_size=3000))
def test_no_bytes_at_all_make_the_doctor_fail(raw: bytes) -> None:
    ask(raw, LOST + raw)


@given(st.lists(st.sampled_from([b"dull line 7", b"an error here", b"", b"x" * 50]), max_size=60), st.integers(1, 90))
def test_lines_are_numbered_alike_whatever_the_blocks(lines: list[bytes], size: int) -> None:
    class Slow(io.BytesIO):
        def read(self, limit: int | None = -1) -> bytes:
            return super().read(size)

    matching_lines = log_text.find_lines(Slow(b"\n".join(lines)), {b"error"}, lambda _, words: words)
    assert [line.number for line in matching_lines] == [at for at, line in enumerate(lines, 1) if b"error" in line]


PASTES = [
    LOST,
    b"[rank1]:[E810 05:36:05.9 ProcessGroupNCCL.cpp:616] [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=8, OpType=ALLREDUCE, NumelIn=9, NumelOut=9, Timeout(ms)=600000) ran for 600020 milliseconds\n",  # noqa: E501
    b"|   0  NVIDIA H200   On  | 00000000:54:00.0 Off |  2 |\n| N/A   27C    P8    34W /  600W |  0MiB / 97887MiB |  0%  Default |\n",  # noqa: E501
    b"GPU 00000000:2D:00.0\n    Temperature\n        GPU Current Temp : 56 C\n        GPU Max Operating Temp : 57 C\n",
    b"CA 'mlx5_8'\n\tPort 1:\n\t\tState: Down\n\t\tPhysical state: Disabled\n",
    b"Capacity:\n  cpu: 12\nAllocatable:\n  cpu: 12\nSystem Info:\n",
    b"NodeName=n1 Gres=(null)\n   State=DOWN+DRAIN\n   Reason=Not responding [root@2026-08-10]\n",
    b'{"kind": "Node", "apiVersion": "v1", "metadata": {"name": "n1"}, "status": {"capacity": {"nvidia.com/gpu": 0}}}',
    b"<?xml version='1.0'?><nvidia_smi_log><gpu id='00000000:01:00.0'><ecc_errors/></gpu></nvidia_smi_log>",
    b"#Entity    XIDER\nGPU 1      120\n",
    b"nvidia-smi --query-gpu=index,utilization.gpu --format=csv\nindex, utilization.gpu [%]\n0, 7 %\n",
    b'DCGM_FI_DEV_XID_ERRORS{gpu="3"} 79\n',
]


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """Known texts as accidents leave them: cut anywhere, mixed line by line, repeated, recoded, coloured."""
    parts = draw(st.lists(st.sampled_from(PASTES), min_size=1, max_size=4))
    cut = [part[draw(st.integers(0, len(part))) :] if draw(st.booleans()) else part for part in parts]
    lines = b"\n".join(cut).splitlines(keepends=True)
    raw = b"".join(draw(st.permutations(lines))) if draw(st.booleans()) else b"".join(lines)
    raw = raw[: draw(st.integers(0, len(raw)))]
    turn = draw(st.sampled_from(["", "crlf", "utf-16", "colours", "nul", "deep"]))
    if turn == "utf-16":
        return raw.decode("latin-1").encode("utf-16")
    return {
        "crlf": raw.replace(b"\n", b"\r\n"),
        "colours": raw.replace(b" ", b"\x1b[1;31m \x1b[0m"),
        "nul": raw.replace(b":", b"\x00:"),
        "deep": b"[" * 3000 + raw,
    }.get(turn, raw)


@given(damaged())
def test_no_damage_to_a_known_text_makes_the_doctor_fail(raw: bytes) -> None:
    report.as_plain(ask(raw, raw))
