"""The sweep over memory as one Triton kernel: check the last pattern, write the next, note what differs.

Imported by `gpu_work_memory` in the working child only, and only where Triton is installed. Each program has one block
of words; a block in which nothing differs costs one reduction more than a copy. On an H200 a sweep is as fast as one.
"""

from __future__ import annotations

from typing import Any

import triton  # type: ignore[import-not-found]
import triton.language as tl  # type: ignore[import-not-found]

from watchkeeper.probe.gpu_work.memory_patterns import BLOCK_WORDS, KEPT, Chunk, Flip, Pattern

NOTHING = -1
WARPS = 4


@triton.jit  # type: ignore[untyped-decorator]
def _made(at, first, seed, fill, KIND: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803
    """The word that belongs at `first + at`; the kinds are those of `gpu_work_memory`."""
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
        found = tl.load(words + at)
        expected = _made(at, first, seed, check_fill, CHECK)
        wrong = (found != expected).to(tl.int32)
        total = tl.sum(wrong)
        if total > 0:
            slot = tl.atomic_add(count, total.to(tl.int64)) + tl.cumsum(wrong) - 1
            is_kept = (wrong != 0) & (slot < KEEP)
            tl.store(kept + slot * 3, first + at, mask=is_kept)
            tl.store(kept + slot * 3 + 1, found, mask=is_kept)
            tl.store(kept + slot * 3 + 2, expected, mask=is_kept)
    if WRITE >= 0:
        tl.store(words + at, _made(at, first, seed, write_fill, WRITE))


class TritonSweeper:
    """Counts and the first words that differ stay on the GPU until they are asked for."""

    name = "triton"

    def __init__(self, torch: Any) -> None:
        self._count = torch.zeros(1, dtype=torch.int64, device="cuda")
        self._kept = torch.zeros(KEPT * 3, dtype=torch.int64, device="cuda")

    def forget(self) -> None:
        self._count.zero_()

    def count(self) -> int:
        return int(self._count.item())

    def flips(self) -> list[Flip]:
        rows = self._kept.view(-1, 3)[: min(KEPT, self.count())].tolist()
        return [Flip(*row) for row in rows]

    def sweep(self, chunk: Chunk, check: Pattern | None, write: Pattern | None, seed: int) -> None:
        blocks = chunk.words.numel() // BLOCK_WORDS
        # Another seed for each chunk: words of two chunks at the same place differ too.
        own_seed = (seed * 7919 + chunk.first * 104729) & 0x3FFFFFFF
        _sweep[(blocks,)](
            chunk.words,
            self._count,
            self._kept,
            chunk.first,
            own_seed,
            0 if check is None else check.fill,
            0 if write is None else write.fill,
            CHECK=NOTHING if check is None else check.kind,
            WRITE=NOTHING if write is None else write.kind,
            KEEP=KEPT,
            BLOCK=BLOCK_WORDS,
            num_warps=WARPS,
        )
