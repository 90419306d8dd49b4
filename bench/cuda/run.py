"""Times rootdk's CUDA kernels against PyTorch's flash, cuDNN and FlexAttention: one process, interleaved, CUDA events,
medians.

Every contestant's output is first held against f32 attention on the same numbers; what is wrong is not timed. Rows that
lose stay in.
usage: run.py LIBRARY OUT.json [ROWS]        ROWS: names, with wildcards, separated by |
"""

import ctypes
import datetime
import fnmatch
import json
import math
import random
import statistics
import subprocess
import sys
import time

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import create_block_mask, flex_attention


class Call(ctypes.Structure):
    _fields_ = [(n, ctypes.c_int64) for n in ("batch", "heads_q", "heads_kv", "len_q", "len_kv", "dim")] + [
        ("dtype", ctypes.c_int32),
        ("causal", ctypes.c_int32),
        ("stats", ctypes.c_int32),
        ("sample", ctypes.c_int32),
        ("soft_cap", ctypes.c_float),
        ("causes", ctypes.c_int32),
        ("key_length", ctypes.c_int64),
    ]


DTYPES = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}

# name, batch, query heads, key heads, queries, keys, dim, causal: 16 k tokens a head batch, as the published tables
# have it
FORWARD = [
    (f"forward d{d} {n} {'causal' if c else 'full'}", max(1, 16384 // n), 2048 // d, 2048 // d, n, n, d, c)
    for d, n in ((128, 4096), (128, 16384), (64, 4096), (64, 16384), (256, 4096))
    for c in (False, True)
]
FORWARD += [
    (f"forward d64 512 batch 32 {'causal' if c else 'full'}", 32, 32, 32, 512, 512, 64, c) for c in (False, True)
]
DECODE = [
    ("decode 32/8 batch 64 8k", 64, 32, 8, 1, 8192, 128, False),
    ("decode 32/8 batch 8 8k", 8, 32, 8, 1, 8192, 128, False),
    ("decode 32/8 batch 1 128k", 1, 32, 8, 1, 131072, 128, False),
]
BACKWARD = [
    (f"backward d{d} {n} {'causal' if c else 'full'}", max(1, 16384 // n), 2048 // d, 2048 // d, n, n, d, c)
    for d, n in ((128, 4096), (128, 16384), (64, 4096), (64, 16384), (256, 4096))
    for c in (False, True)
]
BACKWARD += [
    (f"backward 32/8 d128 4096 {'causal' if c else 'full'}", 2, 32, 8, 4096, 4096, 128, c) for c in (False, True)
]
BACKWARD += [("backward d64 512 batch 32 causal", 32, 32, 32, 512, 512, 64, True)]
CAPS = [
    ("soft-cap 30 d128 4096 full", 4, 16, 16, 4096, 4096, 128, False),
    ("soft-cap 30 d128 4096 causal", 4, 16, 16, 4096, 4096, 128, True),
    ("soft-cap 30 d64 4096 full", 4, 32, 32, 4096, 4096, 64, False),
]
FLEX = ("forward d128 4096 *", "soft-cap 30 d128 4096 full")  # compiling it takes longer than all the rest
STATS = [
    ("d128 4096 full", 4, 16, 16, 4096, 4096, 128, False),
    ("d128 4096 causal", 4, 16, 16, 4096, 4096, 128, True),
    ("d64 4096 full", 4, 32, 32, 4096, 4096, 64, False),
]


class Rootdk:
    def __init__(self, path):
        self.lib = ctypes.CDLL(path)
        self.lib.bench_plan.restype = ctypes.c_void_p
        self.lib.bench_error.restype = ctypes.c_char_p

    def forward(self, q, k, v, causal, stats=1, sample=1, soft_cap=0.0, causes=False, key_length=0):
        b, h, n, d = q.shape
        call = Call(
            b, h, k.shape[1], n, k.shape[2], d, DTYPES[q.dtype], causal, stats, sample, soft_cap, causes, key_length
        )
        name, size = ctypes.create_string_buffer(32), ctypes.c_int64()
        plan = ctypes.c_void_p(self.lib.bench_plan(ctypes.byref(call), 0, ctypes.byref(size), name, 32))
        if not plan:
            raise RuntimeError(self.lib.bench_error().decode())
        workspace = torch.empty(size.value, dtype=torch.uint8, device="cuda")
        o, lse = torch.empty_like(q), torch.empty(b, h, n, device="cuda")
        pointers = [ctypes.c_void_p(t.data_ptr()) for t in (q, k, v, o, lse, workspace)]

        def run(keep=(q, k, v, o, lse, workspace)):
            if self.lib.bench_forward(plan, *pointers, ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)):
                raise RuntimeError(self.lib.bench_error().decode())
            return o

        run.kernel = name.value.decode()
        return run

    def backward(self, q, k, v, d_o, causal, key_length=0):
        b, h, n, d = q.shape
        call = Call(b, h, k.shape[1], n, k.shape[2], d, DTYPES[q.dtype], causal, 1, 1, 0.0, 0, key_length)
        name, size = ctypes.create_string_buffer(32), ctypes.c_int64()
        forward_plan = ctypes.c_void_p(self.lib.bench_plan(ctypes.byref(call), 0, ctypes.byref(size), name, 32))
        forward_size = size.value
        plan = ctypes.c_void_p(self.lib.bench_plan(ctypes.byref(call), 1, ctypes.byref(size), name, 32))
        if not plan or not forward_plan:
            raise RuntimeError(self.lib.bench_error().decode())
        workspace = torch.empty(max(size.value, forward_size), dtype=torch.uint8, device="cuda")
        o, lse = torch.empty_like(q), torch.empty(b, h, n, device="cuda")
        gradients = [torch.empty_like(x) for x in (q, k, v)]
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        pointers = [ctypes.c_void_p(t.data_ptr()) for t in (q, k, v, o, lse, workspace)]
        if self.lib.bench_forward(forward_plan, *pointers, stream):
            raise RuntimeError(self.lib.bench_error().decode())
        pointers = [ctypes.c_void_p(t.data_ptr()) for t in (q, k, v, o, lse, d_o, *gradients, workspace)]

        def run(keep=(q, k, v, o, lse, d_o, workspace)):
            if self.lib.bench_backward(plan, *pointers, ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)):
                raise RuntimeError(self.lib.bench_error().decode())
            return gradients

        run.kernel = name.value.decode()
        return run


def sdpa_backward(backend, q, k, v, d_o, causal):
    q, k, v = (x.detach().requires_grad_() for x in (q, k, v))
    with sdpa_kernel(backend):
        o = F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=q.shape[1] != k.shape[1])
    return lambda: torch.autograd.grad(o, (q, k, v), d_o, retain_graph=True)


def exact_gradients(q, k, v, d_o, causal):
    """f32 gradients of one key head and the query heads that read it."""
    g = q.shape[1] // k.shape[1]
    parts = [x.detach().float().requires_grad_() for x in (q[0, :g], k[0, 0], v[0, 0])]
    for h in range(g):  # one at a time: the scores of a head are a whole matrix
        s = parts[0][h] @ parts[1].T / math.sqrt(q.shape[3])
        if causal:
            s = s.masked_fill(torch.ones_like(s, dtype=torch.bool).triu(1), -math.inf)
        (torch.softmax(s, 1) @ parts[2]).backward(d_o[0, h].float())
    return [x.grad for x in parts]


def right_gradients(run, exact, group):
    got = run()
    got = [got[0][0, :group], got[1][0, 0], got[2][0, 0]]
    errors = [float((x.float() - y).norm() / y.norm()) for x, y in zip(got, exact)]
    # bf16 probabilities and dS under sums of thousands: a few 1e-3, of either sign
    return max(errors), max(errors) < 2e-2


def sdpa(backend, q, k, v, causal):
    def run():
        with sdpa_kernel(backend):
            return F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=q.shape[1] != k.shape[1])

    return run


flex_compiled = torch.compile(flex_attention, dynamic=False)


def flex(q, k, v, causal, soft_cap=0.0):
    """FlexAttention, compiled: a mask of blocks where it is causal, tanh in the score function where there is a cap."""
    mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, q.shape[2], k.shape[2]) if causal else None
    cap = (lambda score, b, h, i, j: soft_cap * torch.tanh(score / soft_cap)) if soft_cap > 0 else None

    def run():
        return flex_compiled(q, k, v, score_mod=cap, block_mask=mask)

    return run


def exact(q, k, v, causal, rows, soft_cap=0.0):
    """f64 attention of a few rows."""
    out = []
    for b, h, i in rows:
        g = q.shape[1] // k.shape[1]
        s = (k[b, h // g].double() @ q[b, h, i].double()) / math.sqrt(q.shape[3])
        if soft_cap > 0:
            s = soft_cap * torch.tanh(s / soft_cap)
        if causal:
            s[i + 1 :] = -math.inf
        out.append(torch.softmax(s, 0) @ v[b, h // g].double())
    return torch.stack(out)


def right(run, q, k, v, causal, soft_cap=0.0):
    o = run()
    generator = torch.Generator().manual_seed(3)
    rows = [tuple(int(torch.randint(n, (1,), generator=generator)) for n in q.shape[:3]) for _ in range(24)]
    want = exact(q, k, v, causal, rows, soft_cap)
    got = torch.stack([o[r] for r in rows]).double()
    error = float((got - want).norm() / want.norm())
    return error, error < 1e-2  # bf16 operands: METHOD of relative norm, a few 1e-3


def captured(run):
    """The run as a CUDA graph: what is timed is the device's work, not how fast Python launches it."""
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph.replay


def timed(contestants, repeats=31, warm=0.5, capture=True):
    """Times in ms of each, interleaved; inputs larger than the cache sweep it themselves, smaller ones do not.

    A card at its power limit slows down after some tenths of a second, and what runs after a hungry kernel runs slower:
    all are warmed for `warm` seconds first, and each round has an order of its own.

    Without capture (autograd runs where forward ran, which a graph does not allow) the queue stays full instead:
    nothing waits in between."""
    events = {name: [] for name in contestants}
    if capture:
        contestants = {name: captured(run) for name, run in contestants.items()}
    begin = time.monotonic()
    while time.monotonic() - begin < warm:
        for run in contestants.values():
            run()
        torch.cuda.synchronize()
    orders = random.Random(1)
    for _ in range(repeats):
        for name, run in orders.sample(list(contestants.items()), len(contestants)):
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            run()
            end.record()
            events[name].append((start, end))
    torch.cuda.synchronize()
    return {name: [s.elapsed_time(e) for s, e in pairs] for name, pairs in events.items()}


def inputs(b, hq, hk, t, s, d, dtype=torch.bfloat16):
    return (
        torch.randn(b, hq, t, d, device="cuda", dtype=dtype),
        torch.randn(b, hk, s, d, device="cuda", dtype=dtype),
        torch.randn(b, hk, s, d, device="cuda", dtype=dtype),
    )


def wanted(name, patterns):
    return any(fnmatch.fnmatch(name, pattern) for pattern in patterns.split("|"))


def main():
    ours = Rootdk(sys.argv[1])
    patterns = sys.argv[3] if len(sys.argv) > 3 else "*"
    torch.manual_seed(1)
    rows = []

    def report(
        name, contestants, q, k, v, causal, work, unit, soft_cap=0.0, check=right, capture=True, repeats=31, base=None
    ):
        """With a base, also the time over its time, round by round."""
        alive, errors = {}, {}
        for peer, run in contestants.items():
            try:
                errors[peer], good = check(run, q, k, v, causal, soft_cap)
                if good:
                    alive[peer] = run
                else:
                    print(f"{name}: {peer} is wrong, {errors[peer]:.2e}")
            except Exception as problem:  # a peer that does not take the problem
                print(f"{name}: {peer} left out: {str(problem).splitlines()[0][:100]}")
        times = timed(alive, repeats, capture=capture)
        medians = {peer: statistics.median(ms) for peer, ms in times.items()}
        rates = {peer: work / ms / 1e9 for peer, ms in medians.items()}
        row = {
            "row": name,
            "unit": unit,
            "repeats": repeats,
            "rate": rates,
            "ms": {p: {"median": medians[p], "min": min(times[p]), "max": max(times[p])} for p in times},
            "relative_error": errors,
        }
        rows.append(row)
        print(f"{name:34s}", "  ".join(f"{peer} {rate:7.1f}" for peer, rate in rates.items()), unit, flush=True)
        if base in times:
            quartiles = {
                peer: statistics.quantiles([a / b for a, b in zip(times[peer], times[base])], n=4)
                for peer in times
                if peer != base
            }
            row[f"over {base}"] = {
                peer: dict(zip(("lower quartile", "median", "upper quartile"), q)) for peer, q in quartiles.items()
            }
            print(
                f"{'  time over ' + base:34s}",
                "  ".join(f"{peer} {q[1]:.3f} ({q[0]:.3f} – {q[2]:.3f})" for peer, q in quartiles.items()),
                flush=True,
            )

    for name, b, hq, hk, t, s, d, causal in FORWARD:
        if not wanted(name, patterns):
            continue
        q, k, v = inputs(b, hq, hk, t, s, d)
        contestants = {
            "rootdk": ours.forward(q, k, v, causal),
            "cudnn": sdpa(SDPBackend.CUDNN_ATTENTION, q, k, v, causal),
            "flash": sdpa(SDPBackend.FLASH_ATTENTION, q, k, v, causal),
        }
        if any(fnmatch.fnmatch(name, x) for x in FLEX):
            contestants["flex"] = flex(q, k, v, causal)
        report(name, contestants, q, k, v, causal, 4 * b * hq * t * s * d / (2 if causal else 1), "TFLOP/s")
    for name, b, hq, hk, t, s, d, causal in DECODE:
        if not wanted(name, patterns):
            continue
        q, k, v = inputs(b, hq, hk, t, s, d)
        contestants = {
            "rootdk": ours.forward(q, k, v, causal),
            "cudnn": sdpa(SDPBackend.CUDNN_ATTENTION, q, k, v, causal),
            "flash": sdpa(SDPBackend.FLASH_ATTENTION, q, k, v, causal),
        }
        report(name, contestants, q, k, v, causal, 2 * k.numel() * 2 * 1000, "GB/s")
    for name, b, hq, hk, t, s, d, causal in BACKWARD:
        if not wanted(name, patterns):
            continue
        q, k, v = inputs(b, hq, hk, t, s, d)
        d_o = torch.randn_like(q)
        want = exact_gradients(q, k, v, d_o, causal)
        contestants = {
            "rootdk": ours.backward(q, k, v, d_o, causal),
            "cudnn": sdpa_backward(SDPBackend.CUDNN_ATTENTION, q, k, v, d_o, causal),
            "flash": sdpa_backward(SDPBackend.FLASH_ATTENTION, q, k, v, d_o, causal),
        }
        report(
            name,
            contestants,
            q,
            k,
            v,
            causal,
            10 * b * hq * t * s * d / (2 if causal else 1),
            "TFLOP/s",
            check=lambda run, *_, want=want, group=hq // hk: right_gradients(run, want, group),
            capture=False,
        )
        del want, contestants
    for name, b, hq, hk, t, s, d, causal in CAPS:
        if not wanted(name, patterns):
            continue
        q, k, v = inputs(b, hq, hk, t, s, d)
        contestants = {"rootdk": ours.forward(q, k, v, causal, soft_cap=30.0)}
        if any(fnmatch.fnmatch(name, x) for x in FLEX):
            contestants["flex"] = flex(q, k, v, causal, soft_cap=30.0)
        report(
            name, contestants, q, k, v, causal, 4 * b * hq * t * s * d / (2 if causal else 1), "TFLOP/s", soft_cap=30.0
        )
    for name, b, hq, hk, t, s, d, causal in STATS:
        if not wanted("statistics " + name, patterns):
            continue
        q, k, v = inputs(b, hq, hk, t, s, d)
        contestants = {
            "none": ours.forward(q, k, v, causal, stats=0),
            "basic": ours.forward(q, k, v, causal),
            "sampled 1/8": ours.forward(q, k, v, causal, stats=2, sample=8),
            "full": ours.forward(q, k, v, causal, stats=2),
            "sampled, causes": ours.forward(q, k, v, causal, stats=2, sample=8, causes=True),
            "full, causes": ours.forward(q, k, v, causal, stats=2, causes=True),
            "cudnn": sdpa(SDPBackend.CUDNN_ATTENTION, q, k, v, causal),
        }
        # What statistics may cost is a matter of hundredths, and a round scatters by two: the median of 401 by a tenth
        # of one.
        report(
            "statistics " + name,
            contestants,
            q,
            k,
            v,
            causal,
            4 * b * hq * t * s * d / (2 if causal else 1),
            "TFLOP/s",
            repeats=401,
            base="none",
        )

    driver = subprocess.run(
        ["nvidia-smi", "--query-gpu=driver_version,name", "--format=csv,noheader"], capture_output=True, text=True
    ).stdout.strip()
    json.dump(
        {
            "date": datetime.date.today().isoformat(),
            "card": torch.cuda.get_device_name(),
            "driver": driver,
            "torch": torch.__version__,
            "cuda": torch.version.cuda,
            "cudnn": torch.backends.cudnn.version(),
            "dtype": "bf16",
            "rows": rows,
        },
        open(sys.argv[2], "w"),
        indent=1,
    )


if __name__ == "__main__":
    main()
