"""The machine's own limits, timed in the same rounds as everything else: drives limits.cc."""
import ctypes as ct
import os
from pathlib import Path

import numpy as np

from cases import Case
from inputs import Inputs, empty
from peers import Task

LIMITS = ct.CDLL(str(Path(os.environ["ROOTDK_BENCH_LIB"]) / "libbench_limits.so"))
LIMITS.limits_multiply_add.restype = ct.c_double
THREADS = int(os.environ["OMP_NUM_THREADS"])
ROUNDS = 1_000_000
PART = 32 << 20  # floats a thread: 128 MiB, beyond what a last-level cache keeps


def versions() -> dict:
    return {}


def multiply_add() -> Task:
    sink = ct.c_float(0)
    call = lambda rounds: LIMITS.limits_multiply_add(ct.c_int64(rounds), ct.c_int(THREADS), ct.byref(sink))
    return Task(lambda _: call(ROUNDS), dict, "multiply-adds", call(1) * ROUNDS)


def read() -> Task:
    x = empty((THREADS, PART), np.float32)
    x[...] = 1
    sink = ct.c_float()
    return Task(lambda _: LIMITS.limits_read(ct.c_void_p(x.ctypes.data), ct.c_int64(PART), ct.c_int(THREADS), ct.byref(sink)), dict, "bytes read", x.nbytes)


def copy() -> Task:
    x, y = (empty((THREADS, PART), np.float32) for _ in range(2))
    x[...] = 1
    return Task(lambda _: LIMITS.limits_copy(*(ct.c_void_p(z.ctypes.data) for z in (x, y)), ct.c_int64(PART), ct.c_int(THREADS)), dict,
                "bytes read and written, stores past the cache", x.nbytes + y.nbytes)


def prepare(case: Case, inputs: Inputs, options: dict) -> Task | None:
    kind = options["limit"]
    if (kind == "fma") != (case.limit == "fma"):
        return None
    return {"fma": multiply_add, "read": read, "copy": copy}[kind]()
