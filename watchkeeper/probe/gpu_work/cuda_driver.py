"""The child that asks CUDA's driver library whether it starts at all: no torch, no context, a few milliseconds.

`diag_run` starts it at every level. What `cuInit` answers tells broken installations apart that NVML does not see: a
fabric that is not ready (802), a library that does not fit the kernel module (803), a GPU that is lost.
"""

from __future__ import annotations

import ctypes
import json
import sys


def main() -> None:
    sys.stdout.write(json.dumps(ask()) + "\n")


def ask() -> dict[str, object]:
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        return {"say": "cuda", "library": None, "why": str(error)[:300]}
    number, count, name = ctypes.c_int(), ctypes.c_int(), ctypes.c_char_p()
    version = number.value if cuda.cuDriverGetVersion(ctypes.byref(number)) == 0 else None
    code = int(cuda.cuInit(0))
    cuda.cuGetErrorName(code, ctypes.byref(name))
    if code == 0:
        code = int(cuda.cuDeviceGetCount(ctypes.byref(count)))
    said = (name.value or b"").decode("ascii", "replace")
    return {"say": "cuda", "library": version or number.value, "code": code, "name": said, "count": count.value}


if __name__ == "__main__":
    main()
