"""Times builds of rootdk's CUDA library against each other, interleaved: what a change to the kernels costs.

Prints each one's time over that of the first, round by round: median and quartiles.
usage: compare.py OLD-LIBRARY NEW-LIBRARY... [--rows PATTERN]
"""

import argparse
import statistics

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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("libraries", nargs="+")
    parser.add_argument("--rows", default="*", help="names, with wildcards, separated by |")
    arguments = parser.parse_args()
    libraries = {path: run.Rootdk(path) for path in arguments.libraries}
    first, *others = libraries
    torch.manual_seed(1)
    for name, make, shape, options in rows():
        if not run.wanted(name, arguments.rows):
            continue
        of = make(*shape, **options)
        times = run.timed({path: of(library) for path, library in libraries.items()}, repeats=101, warm=0.3)
        print(f"{name}: {statistics.median(times[first]):.4f} ms")
        for path in others:
            low, median, high = statistics.quantiles([b / a for a, b in zip(times[first], times[path])], n=4)
            print(f"    {path:40s} {median:.3f} ({low:.3f} – {high:.3f})", flush=True)


if __name__ == "__main__":
    main()
