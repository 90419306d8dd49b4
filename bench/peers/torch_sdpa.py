"""PyTorch's scaled_dot_product_attention. Where it can be asked in more than one way, the fastest is timed."""

import os
import re

import numpy as np
import torch
from cases import Case
from inputs import Inputs
from torch.nn.functional import scaled_dot_product_attention as sdpa

from peers import Task
from peers.fastest import fastest

torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))


def versions() -> dict:
    mkl = re.search(r"Math Kernel Library Version (\S+?)-", torch.__config__.show())
    return {
        "PyTorch": torch.__version__,
        "its BLAS": f"MKL {mkl[1]}" if mkl else "not MKL",
        "its vectors": torch.backends.cpu.get_cpu_capability(),
    }


def tensor(x: np.ndarray, dtype: str) -> torch.Tensor:
    return torch.from_numpy(x.view(np.int16)).view(torch.bfloat16) if dtype == "bf16" else torch.from_numpy(x)


def forward_tasks(case: Case, inputs: Inputs):
    q = tensor(inputs.q, case.dtype)
    caches = [(tensor(k, case.dtype), tensor(v, case.dtype)) for k, v in inputs.caches]
    last = [None]

    def task(how, function):
        def call(i):
            k, v = caches[i % len(caches)]
            with torch.inference_mode():
                last[0] = function(k, v)

        return Task(call, lambda: {"o": last[0].reshape(q.shape).float().numpy()}, how)

    grouped = case.heads_q != case.heads_kv
    yield task(
        "scaled_dot_product_attention" + (", enable_gqa" if grouped else ""),
        lambda k, v: sdpa(q, k, v, is_causal=case.causal, enable_gqa=grouped),
    )
    if grouped and case.len_q == 1:
        # A single query sees every key, so a group's heads can pose as queries of one head, which then reads K and V
        # once.
        rows = q.reshape(case.batch, case.heads_kv, -1, case.dim)
        yield task("scaled_dot_product_attention, the group as queries", lambda k, v: sdpa(rows, k, v))


def backward_task(case: Case, inputs: Inputs) -> Task:
    q, k, v = (tensor(x, case.dtype).requires_grad_() for x in (inputs.q, inputs.k, inputs.v))
    d_o = tensor(inputs.d_o, case.dtype)
    o = sdpa(q, k, v, is_causal=case.causal, enable_gqa=case.heads_q != case.heads_kv)
    last = [None]

    def call(_):
        last[0] = torch.autograd.grad(o, (q, k, v), d_o, retain_graph=True)

    return Task(
        call, lambda: {name: x.float().numpy() for name, x in zip(("d_q", "d_k", "d_v"), last[0])}, "autograd.grad"
    )


def prepare(case: Case, inputs: Inputs, options: dict) -> Task:
    return backward_task(case, inputs) if case.backward else fastest(forward_tasks(case, inputs))
