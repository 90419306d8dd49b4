"""Times what lies beside the fast lane: masks, biases, soft-caps, dropout, odd dims and strides, forward and forward +
backward, each beside what a PyTorch user has for it today. Through the Python package, queued without gaps, so that the
host's time shows only where a call is shorter than it takes to make.

Every contestant's output (and gradients, where they are timed) is first held against attention in f32 on a few heads;
what is wrong is not timed. Rows that lose stay in. usage: ./run gpu-python bench/cuda/cliffs.py [OUT.json [ROWS]]
"""

import functools
import json
import math
import statistics
import sys

import rootdk
import run
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import create_block_mask

BATCH, HEADS, LENGTH, DIM = 4, 16, 2048, 128
CUDNN, EFFICIENT = SDPBackend.CUDNN_ATTENTION, SDPBackend.EFFICIENT_ATTENTION
CAP, P = 30.0, 0.1


def tensors(batch=BATCH, heads=HEADS, length=LENGTH, dim=DIM, dtype=torch.bfloat16):
    return [torch.randn(batch, heads, length, dim, device="cuda", dtype=dtype) for _ in range(3)]


def sdpa(backend, **options):
    def call(q, k, v):
        with sdpa_kernel(backend):
            return F.scaled_dot_product_attention(q, k, v, **options)

    return call


def flex(score, mask=None):
    return lambda q, k, v: run.flex_compiled(q, k, v, score_mod=score, block_mask=mask)


def scores(q, k, change=lambda s: s):
    return change((q.float() @ k.float().transpose(-1, -2)) / math.sqrt(q.shape[-1]))


def book(change):
    """Attention in f32 as one would write it down, of the first item's first two heads."""
    return lambda q, k, v: torch.softmax(scores(q[:1, :2], k[:1, :2], change), -1) @ v[:1, :2].float()


def rows():
    """name, tensors, what the exact output is (None: of random bits), contestants"""
    ours = functools.partial(functools.partial, rootdk.attention)
    bias = torch.randn(1, HEADS, LENGTH, LENGTH, device="cuda", dtype=torch.bfloat16)
    allowed = torch.rand(BATCH, 1, LENGTH, LENGTH, device="cuda") < 0.8
    slopes = [2.0 ** (-8 * (h + 1) / HEADS) for h in range(HEADS)]
    slope = torch.tensor(slopes, device="cuda")
    place = torch.arange(LENGTH, device="cuda")
    alibi = -slope[:2, None, None] * (place[:, None] - place).abs()
    lengths = [LENGTH, LENGTH - 100, LENGTH // 2, LENGTH // 4]
    valid = (place < torch.tensor(lengths, device="cuda")[:, None])[:, None, None]
    block = create_block_mask(
        lambda b, h, i, j: j < torch.tensor(lengths, device="cuda")[b], BATCH, None, LENGTH, LENGTH
    )
    same, causal = (lambda s: s), (lambda s: s.masked_fill(place[:, None] < place, -math.inf))
    qkv = tensors()
    small = tensors(batch=2)
    narrow = tensors(batch=2, dim=100)
    shared = [small[0], *(x[:, :1].expand(-1, HEADS, -1, -1) for x in small[1:])]
    yield "no mask", qkv, book(same), {"rootdk": ours(), "cudnn": sdpa(CUDNN)}
    yield "causal", qkv, book(causal), {"rootdk": ours(causal=True), "cudnn": sdpa(CUDNN, is_causal=True)}
    yield (
        "additive bias",
        qkv,
        book(lambda s: s + bias[:, :2].float()),
        {"rootdk": ours(bias=bias), "cudnn": sdpa(CUDNN, attn_mask=bias)},
    )
    yield (
        "boolean mask",
        qkv,
        book(lambda s: s.masked_fill(~allowed[:1], -math.inf)),
        {"rootdk": ours(mask=allowed), "cudnn": sdpa(CUDNN, attn_mask=allowed)},
    )
    yield (
        "padding",
        qkv,
        book(lambda s: s.masked_fill(~valid[:1], -math.inf)),
        {
            "rootdk": ours(key_lengths=lengths),
            "cudnn": sdpa(CUDNN, attn_mask=valid),
            "flex": flex(None, block),
        },
    )
    yield (
        "soft-cap",
        qkv,
        book(lambda s: CAP * torch.tanh(s / CAP)),
        {"rootdk": ours(softcap=CAP), "flex": flex(lambda s, b, h, i, j: CAP * torch.tanh(s / CAP))},
    )
    yield "dropout", qkv, None, {"rootdk": ours(dropout=P), "cudnn": sdpa(CUDNN, dropout_p=P)}
    yield (
        "ALiBi",
        qkv,
        book(lambda s: s + alibi),
        {"rootdk": ours(alibi=slopes), "flex": flex(lambda s, b, h, i, j: s - slope[h] * (i - j).abs())},
    )
    by_length = 0.43 * math.log(LENGTH)
    yield (
        "SSMax",
        qkv,
        book(lambda s: s * by_length),
        {"rootdk": ours(scale="sqrt_dk*ssmax(0.43)"), "cudnn": sdpa(CUDNN, scale=by_length / math.sqrt(DIM))},
    )
    yield "no mask, f32", tensors(dtype=torch.float32), book(same), {"rootdk": ours(), "efficient": sdpa(EFFICIENT)}
    yield "batch 2", small, book(same), {"rootdk": ours(), "cudnn": sdpa(CUDNN)}
    yield "k and v expanded, batch 2", shared, book(same), {"rootdk": ours(), "cudnn": sdpa(CUDNN)}
    yield "dim 100, batch 2", narrow, book(same), {"rootdk": ours(), "efficient": sdpa(EFFICIENT)}
    strided = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in small]
    yield "[B, T, H, D], batch 2", strided, book(same), {"rootdk": ours(), "cudnn": sdpa(CUDNN)}
    for name, options in {
        "additive bias": {"bias": bias},
        "boolean mask": {"mask": allowed},
        "soft-cap": {"softcap": CAP},
        "dropout": {"dropout": P},
        "ALiBi": {"alibi": slopes},
        "SSMax": {"scale": "sqrt_dk*ssmax(0.43)"},
    }.items():
        full = functools.partial(with_statistics, options)
        yield f"full statistics, {name}", qkv, None, {"rootdk": full, "without": ours(**options)}


def with_statistics(options, q, k, v):
    return rootdk.attention(q, k, v, stats="full", **options)[0]


def forward(call, q, k, v):
    return lambda: call(q, k, v)


def both(call, q, k, v, d_o):
    q, k, v = (x.detach().requires_grad_() for x in (q, k, v))
    return lambda: torch.autograd.grad(call(q, k, v), (q, k, v), d_o)


def relative(x, y):
    return float((x.float() - y).norm() / y.norm())


def right(call, exact, q, k, v, d_o, backward):
    """The largest relative error, of the first item's first two heads: bf16 probabilities leave a few 1e-3."""
    if not backward:
        return relative(call(q, k, v)[:1, :2], exact(q, k, v))
    parts = [x[:1, :2].detach().float().requires_grad_() for x in (q, k, v)]
    want = torch.autograd.grad(exact(*parts), parts, d_o[:1, :2].float())
    return max(relative(x[:1, :2], y) for x, y in zip(both(call, q, k, v, d_o)(), want))


def main():
    pattern = sys.argv[2] if len(sys.argv) > 2 else "*"
    torch.manual_seed(1)
    found = []
    for name, qkv, exact, contestants in rows():
        if not run.wanted(name, pattern):
            continue
        d_o = torch.randn_like(qkv[0])
        gradients = [("out.sum()", torch.ones((), device="cuda", dtype=d_o.dtype).expand_as(d_o))]
        gradients = [("both", d_o)] + (gradients if name == "batch 2" else [])
        for what, d in [("forward", None), *(() if name.startswith("full statistics") else gradients)]:
            alive, errors = {}, {}
            for peer, call in contestants.items():
                try:
                    errors[peer] = right(call, exact, *qkv, d, d is not None) if exact else 0.0
                    if not errors[peer] < 2e-2:
                        print(f"{name}, {what}: {peer} is wrong, {errors[peer]:.2e}")
                        continue
                    alive[peer] = forward(call, *qkv) if d is None else both(call, *qkv, d)
                except Exception as problem:  # a peer that does not take the problem
                    print(f"{name}, {what}: {peer} left out: {str(problem).splitlines()[0][:100]}")
            times = run.timed(alive, 31, warm=0.3, capture=False)
            medians = {peer: statistics.median(ms) for peer, ms in times.items()}
            found.append({"row": name, "what": what, "ms": medians, "relative_error": errors})
            others = [peer for peer in medians if peer != "rootdk"]
            ratio = (
                min((medians["rootdk"] / medians[peer] for peer in others), default=math.nan)
                if "rootdk" in medians
                else math.nan
            )
            print(
                f"{name + ', ' + what:40s}",
                "  ".join(f"{peer} {ms:7.3f}" for peer, ms in medians.items()),
                f"ms, {ratio:.2f} x",
                flush=True,
            )
    if len(sys.argv) > 1:
        with open(sys.argv[1], "w") as out:
            json.dump({"card": torch.cuda.get_device_name(), "torch": torch.__version__, "rows": found}, out, indent=1)


if __name__ == "__main__":
    main()
