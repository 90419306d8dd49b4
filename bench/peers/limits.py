"""The machine's own limits, timed in the same rounds as everything else: drives limits.cc.

Bandwidth is not a property of the machine alone. The host of a virtual one may move its cores to one last-level cache
and back, which makes 36 GB/s out of 64 for seconds or minutes (AMD EPYC, two cores), and small pages cost as much. So
the limit of a row bound by memory is to read the same bytes: the K and V of a competitor, by a guest in its process, in
the same round.
"""

import ctypes as ct
import os
from pathlib import Path

import numpy as np
from cases import Case
from inputs import Inputs, empty

from peers import Task

LIMITS = ct.CDLL(str(Path(os.environ["ROOTDK_BENCH_LIB"]) / "libbench_limits.so"))
LIMITS.limits_multiply_add.restype = ct.c_double
LIMITS.limits_read.restype = ct.c_uint64
THREADS = int(os.environ["OMP_NUM_THREADS"])
ROUNDS = 1_000_000
PART = 32 << 20  # floats a thread copies: 128 MiB, beyond what a last-level cache keeps


def versions() -> dict:
    return {}


def multiply_add() -> Task:
    sink = ct.c_float(0)
    call = lambda rounds: LIMITS.limits_multiply_add(ct.c_int64(rounds), ct.c_int(THREADS), ct.byref(sink))
    return Task(lambda _: call(ROUNDS), dict, "multiply-adds", call(1) * ROUNDS)


def read(inputs: Inputs) -> Task:
    """All bytes of the K and V whose turn it is, whatever their type."""
    pairs = [
        (ct.c_void_p(k.ctypes.data), ct.c_void_p(v.ctypes.data), ct.c_int64(k.nbytes), ct.c_int(THREADS))
        for k, v in inputs.caches
    ]
    return Task(
        lambda i: LIMITS.limits_read(*pairs[i % len(pairs)]),
        dict,
        "bytes read",
        sum(x.nbytes for x in inputs.caches[0]),
    )


def copy() -> Task:
    x, y = (empty((THREADS, PART), np.float32) for _ in range(2))
    x[...] = 1
    return Task(
        lambda _: LIMITS.limits_copy(
            *(ct.c_void_p(z.ctypes.data) for z in (x, y)), ct.c_int64(PART), ct.c_int(THREADS)
        ),
        dict,
        "bytes read and written, stores past the cache",
        x.nbytes + y.nbytes,
    )


def prepare(case: Case, inputs: Inputs, options: dict) -> Task:
    return {"fma": multiply_add, "read": lambda: read(inputs), "copy": copy}[options["limit"]]()
