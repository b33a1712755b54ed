"""The memory sweep as one Triton kernel: check the previous pattern, write the next, record differences.

`memory_patterns` imports it in the worker only, if Triton is installed. Each Triton program handles one block of words;
a block without differences costs one more reduction than a copy.
"""

from __future__ import annotations

from typing import Any

import triton  # type: ignore[import-not-found]
import triton.language as tl  # type: ignore[import-not-found]

from watchkeeper.probe.gpu_work.memory_patterns import BLOCK_WORDS, MAX_FLIPS, Chunk, Flip, Pattern

NO_PATTERN = -1
WARPS = 4


@triton.jit  # type: ignore[untyped-decorator]
def _pattern_word(at, first, seed, fill, KIND: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803
    """The pattern word at `first + at`; `memory_patterns` defines the kinds."""
    if KIND == 0:
        return first + at
    elif KIND == 1:
        return -1 - (first + at)
    elif KIND == 2:
        # 32-bit arithmetic: 64-bit products would be slower than the memory.
        mixed = (at + seed).to(tl.uint32) * 0x1E3779B1
        mixed = (mixed ^ (mixed >> 15)) * 0x05EBCA77
        mixed = mixed ^ (mixed >> 13)
        other = mixed * 0x42B2AE3D
        return ((other.to(tl.uint64) << 32) | mixed.to(tl.uint64)).to(tl.int64, bitcast=True)
    else:
        return tl.zeros_like(at).to(tl.int64) + fill


@triton.jit(do_not_specialize=["first", "seed", "check_fill", "write_fill"])  # type: ignore[untyped-decorator]
def _sweep(  # type: ignore[no-untyped-def] # noqa: PLR0917
    words,
    count,
    kept,
    first: tl.int64,
    seed: tl.int32,
    check_fill: tl.int64,
    write_fill: tl.int64,
    CHECK: tl.constexpr,  # noqa: N803
    WRITE: tl.constexpr,  # noqa: N803
    KEEP: tl.constexpr,  # noqa: N803
    BLOCK: tl.constexpr,  # noqa: N803
):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    if CHECK >= 0:
        read = tl.load(words + at)
        expected = _pattern_word(at, first, seed, check_fill, CHECK)
        wrong = (read != expected).to(tl.int32)
        total = tl.sum(wrong)
        if total > 0:
            slot = tl.atomic_add(count, total.to(tl.int64)) + tl.cumsum(wrong) - 1
            is_kept = (wrong != 0) & (slot < KEEP)
            tl.store(kept + slot * 3, first + at, mask=is_kept)
            tl.store(kept + slot * 3 + 1, read, mask=is_kept)
            tl.store(kept + slot * 3 + 2, expected, mask=is_kept)
    if WRITE >= 0:
        tl.store(words + at, _pattern_word(at, first, seed, write_fill, WRITE))


class TritonSweeper:
    """Runs the kernel; the count and the first flips stay on the GPU until they are read."""

    name = "triton"

    def __init__(self, torch: Any) -> None:
        self._count = torch.zeros(1, dtype=torch.int64, device="cuda")
        self._flips = torch.zeros(MAX_FLIPS * 3, dtype=torch.int64, device="cuda")

    def reset(self) -> None:
        self._count.zero_()

    def count(self) -> int:
        return int(self._count.item())

    def flips(self) -> list[Flip]:
        return [Flip(*row) for row in self._flips.view(-1, 3)[: min(MAX_FLIPS, self.count())].tolist()]

    def sweep(self, chunk: Chunk, check: Pattern | None, write: Pattern | None, seed: int) -> None:
        blocks = chunk.words.numel() // BLOCK_WORDS
        # A different seed for each chunk, so that words at the same offset of two chunks differ.
        chunk_seed = (seed * 7919 + chunk.first_word * 104729) & 0x3FFFFFFF
        _sweep[(blocks,)](
            chunk.words,
            self._count,
            self._flips,
            chunk.first_word,
            chunk_seed,
            0 if check is None else check.fill,
            0 if write is None else write.fill,
            CHECK=NO_PATTERN if check is None else check.kind,
            WRITE=NO_PATTERN if write is None else write.kind,
            KEEP=MAX_FLIPS,
            BLOCK=BLOCK_WORDS,
            num_warps=WARPS,
        )
