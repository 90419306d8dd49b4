"""ONNX Runtime: a graph of one attention node, inputs and outputs bound to memory once.

It has three such nodes, MultiHeadAttention and GroupQueryAttention of its own and ONNX's Attention; none is best for
every shape, so those that can express a case are tried and the fastest is timed. Inputs lie as each node wants them
([batch, length, heads·dim] or [batch, heads, length, dim]).
"""

import os
from dataclasses import replace

import numpy as np
import onnxruntime as ort
from cases import Case
from inputs import Inputs, empty, load
from onnx import TensorProto, helper

from peers import Task
from peers.fastest import fastest

ELEMENT = {
    np.dtype(np.float32): TensorProto.FLOAT,
    np.dtype(np.float16): TensorProto.FLOAT16,
    np.dtype(np.int32): TensorProto.INT32,
}


def versions() -> dict:
    return {"ONNX Runtime": ort.__version__}


def rows_of_heads(x: np.ndarray) -> np.ndarray:
    """[batch, heads, length, dim] to [batch, length, heads·dim]."""
    y = empty((x.shape[0], x.shape[2], x.shape[1] * x.shape[3]), x.dtype)
    y.reshape(x.shape[0], x.shape[2], x.shape[1], x.shape[3])[...] = x.transpose(0, 2, 1, 3)
    return y


class Graph:
    """One node. `inputs` and `outputs` are {name: array}; an absent optional one is None."""

    def __init__(self, op: str, domain: str, inputs: dict, outputs: dict, **attributes):
        names = lambda tensors: [name if x is not None else "" for name, x in tensors.items()]
        info = lambda tensors: [
            helper.make_tensor_value_info(name, ELEMENT[x.dtype], x.shape)
            for name, x in tensors.items()
            if x is not None
        ]
        node = helper.make_node(op, names(inputs), names(outputs), domain=domain, **attributes)
        opsets = [helper.make_opsetid("", 23), helper.make_opsetid("com.microsoft", 1)]
        model = helper.make_model(
            helper.make_graph([node], op, info(inputs), info(outputs)), opset_imports=opsets, ir_version=11
        )
        options = ort.SessionOptions()
        options.intra_op_num_threads = int(os.environ["OMP_NUM_THREADS"])
        options.log_severity_level = 4
        self.session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])

    def bound(self, inputs: dict, outputs: dict):
        binding = self.session.io_binding()
        for bind, tensors in ((binding.bind_input, inputs), (binding.bind_output, outputs)):
            for name, x in tensors.items():
                if x is not None:
                    bind(name, "cpu", 0, x.dtype.type, x.shape, x.ctypes.data)
        return binding


def task(how: str, op: str, domain: str, per_cache: list[tuple[dict, dict]], result, **attributes) -> Task:
    graph = Graph(op, domain, *per_cache[0], **attributes)
    bindings = [graph.bound(*tensors) for tensors in per_cache]
    run = graph.session.run_with_iobinding
    keep = per_cache

    def call(i: int, _keep=keep):
        run(bindings[i % len(bindings)])

    return Task(call, lambda: {"o": load(result(), "f32")}, how)


def multi_head(case: Case, inputs: Inputs, keys_by_head: bool) -> Task:
    caches = inputs.caches if keys_by_head else [(rows_of_heads(k), rows_of_heads(v)) for k, v in inputs.caches]
    q, o = rows_of_heads(inputs.q), empty((case.batch, case.len_q, case.heads_q * case.dim), inputs.q.dtype)
    tensors = [({"query": q, "key": k, "value": v}, {"output": o}) for k, v in caches]
    one = task(
        "MultiHeadAttention" + (", keys by head" if keys_by_head else ""),
        "MultiHeadAttention",
        "com.microsoft",
        tensors,
        lambda: heads_of_rows(case, o),
        num_heads=case.heads_q,
        unidirectional=int(case.causal),
    )
    return replace(one, caches=caches)


def group_query(case: Case, inputs: Inputs) -> Task:
    """Always causal, and it appends: the last keys come as new tokens, the cache holds what was before them."""
    new = case.len_q
    q, o = rows_of_heads(inputs.q), empty((case.batch, case.len_q, case.heads_q * case.dim), inputs.q.dtype)
    last = np.full((case.batch,), case.len_kv - 1, np.int32)
    total = np.full((1,), case.len_kv, np.int32)
    tensors = []
    for k, v in inputs.caches:
        tensors.append(
            (
                {
                    "query": q,
                    "key": rows_of_heads(k[:, :, -new:]),
                    "value": rows_of_heads(v[:, :, -new:]),
                    "past_key": k,
                    "past_value": v,
                    "seqlens_k": last,
                    "total_sequence_length": total,
                },
                {"output": o, "present_key": k, "present_value": v},
            )
        )
    return task(
        "GroupQueryAttention",
        "GroupQueryAttention",
        "com.microsoft",
        tensors,
        lambda: heads_of_rows(case, o),
        num_heads=case.heads_q,
        kv_num_heads=case.heads_kv,
    )


def standard(case: Case, inputs: Inputs) -> Task:
    o = empty(inputs.q.shape, inputs.q.dtype)
    tensors = [({"Q": inputs.q, "K": k, "V": v}, {"Y": o}) for k, v in inputs.caches]
    return task("Attention (opset 23)", "Attention", "", tensors, lambda: o, is_causal=int(case.causal))


def heads_of_rows(case: Case, o: np.ndarray) -> np.ndarray:
    return o.reshape(case.batch, case.len_q, case.heads_q, case.dim).transpose(0, 2, 1, 3)


def prepare(case: Case, inputs: Inputs, options: dict) -> Task | None:
    if case.backward or case.dtype == "bf16":
        return None
    makers = [lambda: standard(case, inputs)]
    if case.heads_q == case.heads_kv:
        makers += [lambda: multi_head(case, inputs, False), lambda: multi_head(case, inputs, True)]
    if case.causal or case.len_q == 1:
        makers += [lambda: group_query(case, inputs)]

    def tasks():
        for make in makers:
            try:
                one = make()
                one.call(0)
            except Exception:  # no kernel for this type or layout: one way fewer
                continue
            yield one

    return fastest(tasks())
