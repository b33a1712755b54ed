"""A training program for `watchkeeper profile -- python bench/gpu/profile_train.py SECONDS`."""

from __future__ import annotations

import sys
import time

import torch


def main(seconds: float) -> None:
    layer = torch.nn.TransformerEncoderLayer(2048, 16, 8192, dropout=0.0, batch_first=True)
    model = torch.nn.TransformerEncoder(layer, 8, enable_nested_tensor=False).cuda().bfloat16()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    x, steps, end = torch.randn(8, 1024, 2048, device="cuda").bfloat16(), 0, time.monotonic() + seconds
    while time.monotonic() < end:
        loss = model(x).float().square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        torch.cuda.synchronize()
        steps += 1
    print(f"trained {steps} steps")


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 10.0)
