"""Child process that initialises the CUDA driver library: no torch, no context, a few milliseconds.

The result of `cuInit` shows faults that NVML does not: a fabric that is not ready (802), a library that does not match
the kernel driver (803), a lost GPU.
"""

from __future__ import annotations

import ctypes
import json
import sys


def main() -> None:
    sys.stdout.write(json.dumps(query_cuda()) + "\n")


def query_cuda() -> dict[str, object]:
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        return {"type": "cuda", "library": None, "why": str(error)[:300]}
    number, count, name = ctypes.c_int(), ctypes.c_int(), ctypes.c_char_p()
    version = number.value if cuda.cuDriverGetVersion(ctypes.byref(number)) == 0 else None
    code = int(cuda.cuInit(0))
    cuda.cuGetErrorName(code, ctypes.byref(name))
    if code == 0:
        code = int(cuda.cuDeviceGetCount(ctypes.byref(count)))
    error_name = (name.value or b"").decode("ascii", "replace")
    return {"type": "cuda", "library": version or number.value, "code": code, "name": error_name, "count": count.value}


if __name__ == "__main__":
    main()
