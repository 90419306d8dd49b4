"""Two OpenBLAS calls and a softmax, as most people write it: drives openblas_naive.cc."""

import ctypes as ct
import os
from pathlib import Path

import numpy as np
import scipy_openblas32
from cases import Case
from inputs import Inputs, empty

from peers import Task

NAIVE = ct.CDLL(str(Path(os.environ["ROOTDK_BENCH_LIB"]) / "libopenblas_naive.so"))
BLAS = ct.CDLL(str(next(Path(scipy_openblas32.get_lib_dir()).glob("libscipy_openblas.so*"))))
BLAS.scipy_openblas_get_config.restype = ct.c_char_p
BLAS.scipy_openblas_get_corename.restype = ct.c_char_p
THREADS = int(os.environ["OMP_NUM_THREADS"])


class Sizes(ct.Structure):
    _fields_ = [(name, ct.c_int64) for name in ("heads", "group", "len_q", "len_kv", "dim")] + [
        ("causal", ct.c_int32),
        ("spread_heads", ct.c_int32),
    ]


def versions() -> dict:
    return {
        "OpenBLAS": BLAS.scipy_openblas_get_config().decode().split()[1]
        + ", "
        + BLAS.scipy_openblas_get_corename().decode()
    }


def prepare(case: Case, inputs: Inputs, options: dict) -> Task | None:
    if case.backward or case.dtype != "f32":
        return None
    heads = case.batch * case.heads_q
    spread = heads >= THREADS
    BLAS.scipy_openblas_set_num_threads(1 if spread else THREADS)
    sizes = Sizes(heads, case.heads_q // case.heads_kv, case.len_q, case.len_kv, case.dim, case.causal, spread)
    o = empty(inputs.q.shape, np.float32)
    scores = empty((THREADS if spread else 1, case.len_q, case.len_kv), np.float32)
    sgemm = ct.cast(BLAS.scipy_cblas_sgemm, ct.c_void_p)
    pointer = lambda x: ct.c_void_p(x.ctypes.data)
    calls = [
        (
            ct.byref(sizes),
            sgemm,
            pointer(inputs.q),
            pointer(k),
            pointer(v),
            pointer(o),
            pointer(scores),
            ct.c_int(THREADS),
        )
        for k, v in inputs.caches
    ]
    keep = (inputs, scores)

    def call(i: int, _keep=keep):
        NAIVE.openblas_naive(*calls[i % len(calls)])

    return Task(call, lambda: {"o": o}, "a head per thread" if spread else "threads inside BLAS")
