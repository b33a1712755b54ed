"""Memory test: write every byte of the free memory with five patterns and read it back.

A sweep checks the previous pattern and writes the next one in the same pass, like moving inversions: the whole memory
lies between writing and reading, so that no cache answers. `address` detects stuck address lines, `complement` the
opposite transitions, `random` couplings between neighbours, and the two checkerboards leaking cells.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from watchkeeper.probe.gpu_work.bench import MIB, Bench, TestSkipped

WORD_BYTES = 8
# The share of free memory that is tested; the driver and torch need the rest.
FREE_SHARE = 0.98
CHUNK_BYTES = 4096 * MIB
MIN_CHUNK_BYTES = 64 * MIB
# Sweeps use whole blocks of this many words; on an H200, 1,024 with four warps was the fastest of six choices.
BLOCK_WORDS = 1024
MAX_FLIPS = 32
# The torch sweep needs memory for the expected words.
TORCH_SWEEP_WORDS = 8 * MIB
CHEQUER = 0x5555555555555555


class Pattern(NamedTuple):
    """`kind` says how a word is computed (see `triton_sweep`); `fill` is the word of a constant pattern."""

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
    """A block of allocated memory; `first_word` is the index of its first word in the tested memory."""

    words: Any
    first_word: int


class Flip(NamedTuple):
    word_index: int
    read: int
    written: int


def run_patterns(bench: Bench, options: Mapping[str, Any]) -> dict[str, Any]:
    """Test the free memory; `measured` is GB/s of bytes written and read, `problems` lists flipped words."""
    free_bytes = bench.free_bytes()
    chunks = allocate(bench, int(float(options.get("share", FREE_SHARE)) * free_bytes))
    size = sum(chunk.words.numel() for chunk in chunks) * WORD_BYTES
    sweeper = _choose_sweeper(bench, chunks[0])
    seconds, rounds = 0.0, int(options.get("rounds", 1))
    for number in range(rounds):
        seconds += _run_round(bench, sweeper, chunks, seed=int(options.get("seed", 1)) + number, options=options)
        bench.report(test="memory_patterns", done=(number + 1) / rounds, wrong_words=sweeper.count())
    flips, wrong_words = sweeper.flips(), sweeper.count()
    problems = [_describe_flip(flip, chunks) for flip in sorted(flips)]
    if wrong_words > len(flips):
        problems.append(f"{wrong_words} words were wrong in total")
    facts = {
        "bytes": size,
        "free_share": size / free_bytes,
        "seconds": seconds,
        "rounds": rounds,
        "patterns": [pattern.name for pattern in PATTERNS],
        "engine": sweeper.name,
        "wrong_words": wrong_words,
    }
    moved_bytes = 2 * len(PATTERNS) * rounds * size
    note = (
        f"{size / 2**30:.0f} GiB, {size / free_bytes:.0%} of free memory, {len(PATTERNS)} patterns in {seconds:.2f} s"
    )
    return {"measured": moved_bytes / seconds / 1e9, "problems": problems, "facts": facts, "note": note}


def _run_round(bench: Bench, sweeper: Any, chunks: Sequence[Chunk], *, seed: int, options: Mapping[str, Any]) -> float:
    seconds = 0.0
    plant = options.get("plant")
    for check, write in zip([None, *PATTERNS], [*PATTERNS, None], strict=True):
        if plant is not None and check is not None and check.name == plant["pattern"]:
            _plant_flip(chunks, int(plant["word"]), int(plant["bit"]))

        def sweep_all(check: Pattern | None = check, write: Pattern | None = write) -> None:
            for chunk in chunks:
                sweeper.sweep(chunk, check, write, seed)

        seconds += bench.measure_seconds(sweep_all)
    return seconds


def allocate(bench: Bench, target_bytes: int) -> list[Chunk]:
    """Allocate chunks of this total size; use smaller chunks when no large one is free."""
    torch, block = bench.torch, BLOCK_WORDS * WORD_BYTES
    chunks: list[Chunk] = []
    remaining, chunk_size = target_bytes // block * block, CHUNK_BYTES
    first_word = 0
    while remaining >= block:
        size = min(chunk_size, remaining)
        try:
            words = torch.empty(size // WORD_BYTES, dtype=torch.int64, device=bench.device)
        except torch.OutOfMemoryError:
            if chunk_size <= MIN_CHUNK_BYTES:
                break
            chunk_size //= 2
            continue
        chunks.append(Chunk(words, first_word))
        first_word += size // WORD_BYTES
        remaining -= size
    if not chunks:
        raise TestSkipped(f"could not allocate any of {target_bytes >> 20} MiB free memory")
    return chunks


def _plant_flip(chunks: Sequence[Chunk], word_index: int, bit: int) -> None:
    """Flip one bit without the test knowing, for tests of the test."""
    word_index %= chunks[-1].first_word + chunks[-1].words.numel()
    for chunk in chunks:
        offset = word_index - chunk.first_word
        if 0 <= offset < chunk.words.numel():
            chunk.words[offset] ^= 1 << bit if bit < 63 else -1 << 63


def _describe_flip(flip: Flip, chunks: Sequence[Chunk]) -> str:
    chunk = next(chunk for chunk in chunks if 0 <= flip.word_index - chunk.first_word < chunk.words.numel())
    address = chunk.words.data_ptr() + (flip.word_index - chunk.first_word) * WORD_BYTES
    read, written = flip.read & (2**64 - 1), flip.written & (2**64 - 1)
    bits = bin(read ^ written).count("1")
    offset = flip.word_index * WORD_BYTES
    return f"byte {offset:#x} (address {address:#x}): read {read:#018x}, written {written:#018x}, {bits} bits differ"


def _choose_sweeper(bench: Bench, chunk: Chunk) -> Any:
    """The Triton sweeper if it compiles and runs on this GPU, else the torch sweeper."""
    trial_chunk = Chunk(chunk.words[:BLOCK_WORDS], 0)
    if bench.is_gpu:
        try:
            sweeper = importlib.import_module("watchkeeper.probe.gpu_work.triton_sweep").TritonSweeper(bench.torch)
            for check, write in zip([None, *PATTERNS], [*PATTERNS, None], strict=True):
                sweeper.sweep(trial_chunk, check, write, 1)
            sweeper.reset()
        except Exception as error:  # Deliberately everything: a compiler fails in many ways, a broken GPU fails again.
            bench.report(test="memory_patterns", done=0.0, without_triton=str(error)[:200])
        else:
            return sweeper
    return TorchSweeper(bench.torch)


class TorchSweeper:
    """The same sweep with torch operations: slower, but runs everywhere."""

    name = "torch"

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._flips: list[Flip] = []
        self._count = 0

    def reset(self) -> None:
        self._flips, self._count = [], 0

    def count(self) -> int:
        return self._count

    def flips(self) -> list[Flip]:
        return self._flips[:MAX_FLIPS]

    def sweep(self, chunk: Chunk, check: Pattern | None, write: Pattern | None, seed: int) -> None:
        for start in range(0, chunk.words.numel(), TORCH_SWEEP_WORDS):
            words = chunk.words[start : start + TORCH_SWEEP_WORDS]
            first_word = chunk.first_word + start
            if check is not None:
                expected = self._pattern_words(words, check, first_word=first_word, seed=seed)
                differing = (words != expected).nonzero().flatten()
                self._count += differing.numel()
                for index in differing[: MAX_FLIPS - len(self._flips)].tolist():
                    self._flips.append(Flip(first_word + index, int(words[index]), int(expected[index])))
            if write is not None:
                words.copy_(self._pattern_words(words, write, first_word=first_word, seed=seed))

    def _pattern_words(self, words: Any, pattern: Pattern, *, first_word: int, seed: int) -> Any:
        torch = self._torch
        if pattern.kind == FILL:
            return torch.full_like(words, pattern.fill)
        addresses = torch.arange(first_word, first_word + words.numel(), dtype=torch.int64, device=words.device)
        if pattern.kind == ADDRESS:
            return addresses
        if pattern.kind == COMPLEMENT:
            return ~addresses
        mixed = (addresses + seed) * 0x1E3779B97F4A7C15
        return mixed ^ (mixed >> 29) ^ (mixed << 31)
