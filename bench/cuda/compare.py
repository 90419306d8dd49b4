"""Times two builds of rootdk's CUDA library against each other, interleaved: what a change to the kernels costs.

Prints the time of the second over that of the first, round by round: median and quartiles.
usage: compare.py OLD-LIBRARY NEW-LIBRARY [ROW-PATTERN]
"""

import fnmatch
import statistics
import sys

import run
import torch


def rows():
    """name, what makes a run out of a library"""

    def forward(b, hq, hk, t, s, d, causal, **options):
        q, k, v = run.inputs(b, hq, hk, t, s, d)
        return lambda library: library.forward(q, k, v, causal, **options)

    def backward(b, hq, hk, t, s, d, causal, **options):
        q, k, v = run.inputs(b, hq, hk, t, s, d)
        d_o = torch.randn_like(q)
        return lambda library: library.backward(q, k, v, d_o, causal, **options)

    for name, *shape in run.FORWARD + run.DECODE:
        yield name, forward, shape, {}
    # a cache that is not full: the last block holds keys of no item
    for name, *shape in run.FORWARD[:2] + run.FORWARD[4:6] + run.DECODE:
        yield f"{name}, by lengths", forward, shape, {"key_length": shape[4] - 100}
    for name, *shape in run.BACKWARD:
        yield name, backward, shape, {}
    for name, *shape in run.BACKWARD[:2] + run.BACKWARD[4:6]:
        yield f"{name}, by lengths", backward, shape, {"key_length": shape[4] - 100}
    for name, *shape in run.CAPS:
        yield name, forward, shape, {"soft_cap": 30.0}
    for name, *shape in run.STATS:
        yield f"statistics {name}", forward, shape, {"stats": 2}
        yield f"statistics {name}, 1 in 8", forward, shape, {"stats": 2, "sample": 8}


def main():
    old, new = (run.Rootdk(path) for path in sys.argv[1:3])
    pattern = sys.argv[3] if len(sys.argv) > 3 else "*"
    torch.manual_seed(1)
    for name, make, shape, options in rows():
        if not fnmatch.fnmatch(name, pattern):
            continue
        of = make(*shape, **options)
        times = run.timed({"old": of(old), "new": of(new)}, repeats=101, warm=0.3)
        low, median, high = statistics.quantiles([b / a for a, b in zip(times["old"], times["new"])], n=4)
        print(
            f"{name:46s} new over old {median:.3f} ({low:.3f} – {high:.3f}), {statistics.median(times['new']):.4f} ms",
            flush=True,
        )


if __name__ == "__main__":
    main()
