#!/usr/bin/env python3
"""What a call costs beside its arithmetic: attention so small (1 × 4 × 8 × 32, f32) that the way to the kernel is what
is timed, PyTorch's F.scaled_dot_product_attention and rootdk's in turn. ./run bench-calls

A round times every way once, twenty calls of each, few enough that most rounds are not interrupted, in an order that
rotates; ratios are within rounds. Outputs and gradients are compared before anything is timed.
"""

import statistics
import sys
import time

import rootdk
import rootdk.torch
import torch
import torch.nn.functional as F
from machine import describe
from rootdk import _compiled

ROUNDS = int(sys.argv[1]) if len(sys.argv) > 1 else 601
CALLS = 20
PLAIN = "PyTorch"
WAYS = {
    PLAIN: F.scaled_dot_product_attention,
    "rootdk.torch.scaled_dot_product_attention": rootdk.torch.scaled_dot_product_attention,
    "rootdk.attention": rootdk.attention,
}
# The largest ratio that is allowed of each, with and without gradients.
ALLOWED = {"without gradients": 1.5, "forward and backward": 3.0}


def times(way, inputs, d_out):
    """Seconds a call, on the average of CALLS."""
    start = time.perf_counter()
    if d_out is None:
        for _ in range(CALLS):
            way(*inputs)
    else:
        for _ in range(CALLS):
            torch.autograd.grad(way(*inputs), inputs, d_out)
    return (time.perf_counter() - start) / CALLS


def same(inputs, d_out):
    """Refuses to time what computes something else."""
    expected = None
    for name, way in WAYS.items():
        out = way(*inputs)
        found = (out,) if d_out is None else (out, *torch.autograd.grad(out, inputs, d_out))
        expected = expected or found
        for one, other in zip(found, expected):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5, msg=name)


def timed(inputs, d_out):
    names = list(WAYS)
    seconds = {name: [] for name in names}
    for round_ in range(ROUNDS + 1):  # the first is for the caches
        for name in names[round_ % len(names) :] + names[: round_ % len(names)]:
            took = times(WAYS[name], inputs, d_out)
            if round_:
                seconds[name].append(took)
    return seconds


def show(title, seconds):
    """The largest ratio of ours to PyTorch's."""
    print(title)
    worst = 0.0
    for name, each in seconds.items():
        ratios = sorted(a / b for a, b in zip(each, seconds[PLAIN]))
        tenth = len(ratios) // 10
        spread = f"  {statistics.median(ratios):.2f} × ({ratios[tenth]:.2f} – {ratios[-1 - tenth]:.2f})"
        print(f"  {name:42} {1e6 * statistics.median(each):6.1f} µs{'' if name == PLAIN else spread}")
        worst = max(worst, 0.0 if name == PLAIN else statistics.median(ratios))
    return worst


def main():
    machine = describe()
    print(f"{machine['cpu']}, {machine['cores']} cores, commit {machine['commit']}, {machine['date']}")
    compiled = "compiled operators" if _compiled.has_compiled_operator else "NO COMPILED OPERATORS"
    print(
        f"torch {torch.__version__}, {compiled}; medians of {ROUNDS} rounds of {CALLS} calls, 10 % and 90 %; one thread"
    )
    torch.set_num_threads(1)
    torch.manual_seed(0)
    missed = 0
    q, k, v, d_out = (torch.randn(1, 4, 8, 32) for _ in range(4))
    learned = tuple(x.clone().requires_grad_() for x in (q, k, v))
    for title, inputs, above in (("without gradients", (q, k, v), None), ("forward and backward", learned, d_out)):
        same(inputs, above)
        worst = show(title, timed(inputs, above))
        met = worst <= ALLOWED[title]
        missed += not met
        print(f"  {worst:.2f} × at most; {ALLOWED[title]} is allowed: {'met' if met else 'MISSED'}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
