"""Every byte of the free memory, written and read back with five patterns.

Called by `gpu_work`. A sweep checks what the last one wrote and writes the next pattern in the same pass, as moving
inversions do: between writing and reading lies the whole memory, so nothing is answered by a cache. Words of 8 bytes;
`address` finds address lines that are stuck, its complement the opposite transitions, `random` couplings between
neighbours, and the two chequers cells that leak. The sweep itself is Triton's where Triton is there, else torch's.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from watchkeeper.probe.gpu_work.bench import MIB, Bench, TestSkipped

WORD = 8
# What the driver and torch need beside; the rest of the free memory is tested.
SHARE = 0.98
CHUNK_BYTES = 4096 * MIB
SMALLEST_CHUNK_BYTES = 64 * MIB
# Sweeps work on whole blocks of this many words; on an H200 1,024 in four warps was the fastest of six choices.
BLOCK_WORDS = 1024
KEPT = 32
# torch's own sweep needs room for what it expects.
TORCH_WORDS = 8 * MIB
CHEQUER = 0x5555555555555555


class Pattern(NamedTuple):
    """`kind` is how the word is made (see `triton_sweep`); `fill` is the word itself where it is always the same."""

    name: str
    kind: int
    fill: int = 0


ADDRESS, COMPLEMENT, RANDOM, FILL = range(4)
PATTERNS = (
    Pattern("address", ADDRESS),
    Pattern("complement", COMPLEMENT),
    Pattern("random", RANDOM),
    Pattern("0x55", FILL, CHEQUER),
    Pattern("0xaa", FILL, ~CHEQUER),
)


@dataclass(frozen=True)
class Chunk:
    """A piece of the memory; `first` is the number of its first word in all that is tested."""

    words: Any
    first: int


class Flip(NamedTuple):
    """A word that did not come back as it was written."""

    word: int
    found: int
    expected: int


def patterns(bench: Bench, options: Mapping[str, Any]) -> dict[str, Any]:
    """`measured` is GB/s, bytes written and bytes read both counted; problems name what flipped, and where."""
    free = bench.free_bytes()
    chunks = allocate(bench, int(float(options.get("share", SHARE)) * free))
    size = sum(chunk.words.numel() for chunk in chunks) * WORD
    sweeper = _sweeper(bench, chunks[0])
    seconds, rounds = 0.0, int(options.get("rounds", 1))
    for number in range(rounds):
        seconds += _round(bench, sweeper, chunks, seed=int(options.get("seed", 1)) + number, options=options)
        bench.tell(test="memory_patterns", done=(number + 1) / rounds, wrong_words=sweeper.count())
    flips, counts = sweeper.flips(), sweeper.count()
    problems = [_words(flip, chunks) for flip in sorted(flips)]
    if counts > len(flips):
        problems.append(f"{counts} words were wrong in all")
    facts = {
        "bytes": size,
        "free_share": size / free,
        "seconds": seconds,
        "rounds": rounds,
        "patterns": [pattern.name for pattern in PATTERNS],
        "engine": sweeper.name,
        "wrong_words": counts,
    }
    moved = 2 * len(PATTERNS) * rounds * size
    note = f"{size / 2**30:.0f} GiB, {size / free:.0%} of what was free, {len(PATTERNS)} patterns in {seconds:.2f} s"
    return {"measured": moved / seconds / 1e9, "problems": problems, "facts": facts, "note": note}


def _round(bench: Bench, sweeper: Any, chunks: Sequence[Chunk], *, seed: int, options: Mapping[str, Any]) -> float:
    seconds = 0.0
    plant = options.get("plant")
    for check, write in zip([None, *PATTERNS], [*PATTERNS, None], strict=True):
        if plant is not None and check is not None and check.name == plant["pattern"]:
            _plant(chunks, int(plant["word"]), int(plant["bit"]))

        def whole(check: Pattern | None = check, write: Pattern | None = write) -> None:
            for chunk in chunks:
                sweeper.sweep(chunk, check, write, seed)

        seconds += bench.seconds(whole)
    return seconds


def allocate(bench: Bench, wanted_bytes: int) -> list[Chunk]:
    """Pieces that together have about this much; smaller ones where no large one is left."""
    torch, block = bench.torch, BLOCK_WORDS * WORD
    chunks: list[Chunk] = []
    left, piece = wanted_bytes // block * block, CHUNK_BYTES
    first = 0
    while left >= block:
        size = min(piece, left)
        try:
            words = torch.empty(size // WORD, dtype=torch.int64, device=bench.device)
        except torch.OutOfMemoryError:
            if piece <= SMALLEST_CHUNK_BYTES:
                break
            piece //= 2
            continue
        chunks.append(Chunk(words, first))
        first += size // WORD
        left -= size
    if not chunks:
        raise TestSkipped(f"none of the {wanted_bytes >> 20} MiB that are free could be had")
    return chunks


def _plant(chunks: Sequence[Chunk], word: int, bit: int) -> None:
    """Flip one bit behind the test's back, to see that it is found."""
    word %= chunks[-1].first + chunks[-1].words.numel()
    for chunk in chunks:
        at = word - chunk.first
        if 0 <= at < chunk.words.numel():
            chunk.words[at] ^= _signed(1 << bit)


def _words(flip: Flip, chunks: Sequence[Chunk]) -> str:
    chunk = next(chunk for chunk in chunks if 0 <= flip.word - chunk.first < chunk.words.numel())
    address = chunk.words.data_ptr() + (flip.word - chunk.first) * WORD
    found, expected = flip.found & (2**64 - 1), flip.expected & (2**64 - 1)
    bits = bin(found ^ expected).count("1")
    offset = flip.word * WORD
    return f"byte {offset:#x} (address {address:#x}): read {found:#018x}, written {expected:#018x}, {bits} bits differ"


def _sweeper(bench: Bench, chunk: Chunk) -> Any:
    """Triton's sweep, compiled, or torch's where Triton is absent, lacks a compiler or does not know this GPU."""
    first = Chunk(chunk.words[:BLOCK_WORDS], 0)
    if bench.is_gpu:
        try:
            sweeper = importlib.import_module("watchkeeper.probe.gpu_work.triton_sweep").TritonSweeper(bench.torch)
            for check, write in zip([None, *PATTERNS], [*PATTERNS, None], strict=True):
                sweeper.sweep(first, check, write, 1)
            sweeper.forget()
        except Exception as error:  # Deliberately everything: a compiler fails in many ways, a broken GPU fails again.
            bench.tell(test="memory_patterns", done=0.0, without_triton=str(error)[:200])
        else:
            return sweeper
    return TorchSweeper(bench.torch)


class TorchSweeper:
    """The same sweep with torch's own operations: slower, and everywhere."""

    name = "torch"

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._flips: list[Flip] = []
        self._count = 0

    def forget(self) -> None:
        self._flips, self._count = [], 0

    def count(self) -> int:
        return self._count

    def flips(self) -> list[Flip]:
        return self._flips[:KEPT]

    def sweep(self, chunk: Chunk, check: Pattern | None, write: Pattern | None, seed: int) -> None:
        for start in range(0, chunk.words.numel(), TORCH_WORDS):
            part = chunk.words[start : start + TORCH_WORDS]
            first = chunk.first + start
            if check is not None:
                self._compare(part, self._made(part, check, first=first, seed=seed), first)
            if write is not None:
                part.copy_(self._made(part, write, first=first, seed=seed))

    def _compare(self, part: Any, expected: Any, first: int) -> None:
        at = (part != expected).nonzero().flatten()
        self._count += at.numel()
        for index in at[: KEPT - len(self._flips)].tolist():
            self._flips.append(Flip(first + index, int(part[index]), int(expected[index])))

    def _made(self, part: Any, pattern: Pattern, *, first: int, seed: int) -> Any:
        torch = self._torch
        if pattern.kind == FILL:
            return torch.full_like(part, pattern.fill)
        word = torch.arange(first, first + part.numel(), dtype=torch.int64, device=part.device)
        if pattern.kind == ADDRESS:
            return word
        if pattern.kind == COMPLEMENT:
            return ~word
        mixed = (word + seed) * 0x1E3779B97F4A7C15
        return mixed ^ (mixed >> 29) ^ (mixed << 31)


def _signed(word: int) -> int:
    return word - (1 << 64) if word >> 63 else word
