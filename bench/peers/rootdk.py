"""rootdk through its C ABI: plan, validation and statistics in every call; the workspace is the caller's and is
reused."""

import ctypes as ct
import os
from pathlib import Path

import numpy as np
from cases import Case
from inputs import Inputs, empty, load

from peers import Task

LIBRARY = ct.CDLL(str(Path(os.environ["ROOTDK_BENCH_LIB"]) / "librootdk.so"))
LIBRARY.rootdk_last_error.restype = ct.c_char_p
LIBRARY.rootdk_version.restype = ct.c_char_p

DTYPE = {"f32": 0, "f16": 1, "bf16": 2}
STATS = {"none": 0, "basic": 1, "full": 2}
FORWARD, BACKWARD = 0, 1


# The structs of include/rootdk/c.h.
class Tensor(ct.Structure):
    _fields_ = [
        ("data", ct.c_void_p),
        ("dtype", ct.c_int32),
        ("device", ct.c_int32),
        ("shape", ct.c_int64 * 4),
        ("strides", ct.c_int64 * 4),
    ]


class Array(ct.Structure):
    _fields_ = [("data", ct.c_void_p), ("count", ct.c_int64)]


class Problem(ct.Structure):
    _fields_ = [
        ("version", ct.c_int32),
        ("scale_rule", ct.c_int32),
        ("scale_value", ct.c_double),
        ("scale_per_head", Array),
        ("has_soft_cap", ct.c_int32),
        ("soft_cap", ct.c_float),
        ("transform", ct.c_void_p * 5),
        ("causal", ct.c_int32),
        ("diagonal", ct.c_int32),
        ("diagonal_offset", ct.c_int64),
        ("window_left", ct.c_int64),
        ("window_right", ct.c_int64),
        ("document_q_starts", Array),
        ("document_kv_starts", Array),
        ("allowed", Tensor),
        ("bias", Tensor),
        ("alibi_slopes", Array),
        ("sink", Array),
        ("dropout_seed", ct.c_uint64),
        ("dropout_p", ct.c_float),
        ("stats", ct.c_int32),
        ("page_table", Array),
        ("pages_per_item", ct.c_int64),
        ("paged_len_kv", ct.c_int64),
        ("scale", ct.c_char_p),
        ("ssmax", Array * 2),
        ("stats_sample", ct.c_int64),
        ("stats_sample_offset", ct.c_int64),
        ("stats_first_query", ct.c_int64),
        ("stats_flags", ct.c_int32 * 2),
        ("reserved", ct.c_uint64 * 25),
    ]


class ForwardInputs(ct.Structure):
    _fields_ = [("q", Tensor), ("k", Tensor), ("v", Tensor), ("reserved", ct.c_uint64 * 8)]


class HeadStats(ct.Structure):
    _fields_ = [("words", ct.c_uint64 * 96)]  # ROOTDK_HEAD_STATS_WORDS


class Outputs(ct.Structure):
    _fields_ = [
        ("o", Tensor),
        ("lse", Tensor),
        ("rows", Tensor * 3),
        ("head_stats", ct.POINTER(HeadStats)),
        ("head_stats_count", ct.c_int64),
        ("key_mass", Tensor),
        ("gaps", ct.c_void_p),
        ("gaps_count", ct.c_int64),
        ("reserved", ct.c_uint64 * 8),
    ]


class BackwardInputs(ct.Structure):
    _fields_ = [
        ("q", Tensor),
        ("k", Tensor),
        ("v", Tensor),
        ("o", Tensor),
        ("lse", Tensor),
        ("d_o", Tensor),
        ("d_lse", Tensor),
        ("reserved", ct.c_uint64 * 8),
    ]


class Gradients(ct.Structure):
    _fields_ = [
        ("d_q", Tensor),
        ("d_k", Tensor),
        ("d_v", Tensor),
        ("d_bias", Tensor),
        ("d_scale", Array),
        ("d_sink", Array),
        ("d_ssmax", Array * 2),
        ("head_stats", ct.c_void_p),
        ("head_stats_count", ct.c_int64),
        ("reserved", ct.c_uint64 * 4),
    ]


def check(status: int):
    if status:
        raise RuntimeError(LIBRARY.rootdk_last_error().decode())


def view(x: np.ndarray, dtype: str) -> Tensor:
    return Tensor(
        x.ctypes.data,
        DTYPE[dtype],
        0,
        (ct.c_int64 * 4)(*x.shape),
        (ct.c_int64 * 4)(*(n // x.itemsize for n in x.strides)),
    )


def workspace_for(problem: Problem, inputs: ForwardInputs, which: int) -> np.ndarray:
    size = ct.c_size_t()
    check(LIBRARY.rootdk_workspace_size(ct.byref(problem), ct.byref(inputs), which, ct.byref(size)))
    return empty((size.value,), np.uint8)


def explain(problem: Problem, inputs: ForwardInputs, which: int) -> str:
    words = ct.create_string_buffer(4096)
    check(LIBRARY.rootdk_explain(ct.byref(problem), ct.byref(inputs), which, words, ct.c_size_t(len(words)), None))
    lines = words.value.decode().splitlines()
    return "; ".join(line for line in lines if line.startswith(("kernel", "schedule")))


def versions() -> dict:
    return {"rootdk": LIBRARY.rootdk_version().decode()}


def prepare(case: Case, inputs: Inputs, options: dict) -> Task:
    problem = Problem()
    LIBRARY.rootdk_problem_init(ct.byref(problem))
    problem.causal = case.causal
    problem.stats = STATS[options.get("stats", "basic")]
    problem.stats_sample = options.get("sample", 1)

    o = empty((case.batch, case.heads_q, case.len_q, case.dim), inputs.q.dtype)
    lse = empty((case.batch, case.heads_q, case.len_q, 1), np.float32)
    heads = (HeadStats * (case.batch * case.heads_q))()
    outputs = Outputs(o=view(o, case.dtype))
    if case.backward:
        outputs.lse = view(lse, "f32")
    if problem.stats:
        outputs.head_stats, outputs.head_stats_count = heads, len(heads)
    forward_inputs = [
        ForwardInputs(view(inputs.q, case.dtype), view(k, case.dtype), view(v, case.dtype)) for k, v in inputs.caches
    ]
    workspace = workspace_for(problem, forward_inputs[0], FORWARD)

    function = LIBRARY.rootdk_forward
    rest = (ct.byref(outputs), ct.c_void_p(workspace.ctypes.data), ct.c_size_t(workspace.nbytes))
    calls = [(ct.byref(problem), ct.byref(one), *rest) for one in forward_inputs]
    tensors, which = {"o": o}, FORWARD
    if case.backward:
        check(function(*calls[0]))
        like = lambda x: empty(x.shape, x.dtype)
        tensors, which = {"d_q": like(inputs.q), "d_k": like(inputs.k), "d_v": like(inputs.v)}, BACKWARD
        backward_inputs = BackwardInputs(
            *(view(x, case.dtype) for x in (inputs.q, inputs.k, inputs.v, o)),
            view(lse, "f32"),
            view(inputs.d_o, case.dtype),
        )
        gradients = Gradients(**{name: view(x, case.dtype) for name, x in tensors.items()})
        workspace = workspace_for(problem, forward_inputs[0], BACKWARD)
        function = LIBRARY.rootdk_backward
        calls = [
            (
                ct.byref(problem),
                ct.byref(backward_inputs),
                ct.byref(gradients),
                ct.c_void_p(workspace.ctypes.data),
                ct.c_size_t(workspace.nbytes),
            )
        ]

    keep = (inputs, o, lse, heads, forward_inputs, workspace)  # what the structs point to

    def call(i: int, _keep=keep):
        check(function(*calls[i % len(calls)]))

    return Task(
        call,
        lambda: {name: load(x, case.dtype) for name, x in tensors.items()},
        explain(problem, forward_inputs[0], which),
    )
