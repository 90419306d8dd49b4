"""What the answer is, and how wrong a competitor may be before its time counts for nothing.

The rule of rootdk's own tests: at most twice as wrong as the plain method in the same dtype, plus a floor of rounding
that cannot be avoided (tests/support/tolerance.cc derives it). Exact and plain are the same lines, in f64 and in f32
with S and P rounded to the storage dtype. A few key/value heads are compared whole; which ones is spread over batch and
heads.
"""

import numpy as np
from cases import Case
from inputs import Inputs, load, store

BUDGET = 3e10  # floating-point operations that checking a row may take
SCORES = 2**23  # at a time: nothing of size len_q × len_kv is kept
UNIT = 2.0**-24
HALF_ULP = {"f32": 2.0**-24, "f16": 2.0**-11, "bf16": 2.0**-8}


def checked_heads(case: Case) -> list[tuple[int, int]]:
    """(batch item, key/value head) to compare: the last, the first, and as many between as the budget allows."""
    every = case.batch * case.heads_kv
    cost = case.work() / every if case.limit == "fma" else 4.0 * case.heads_q * case.pairs() * case.dim / every
    count = int(np.clip(BUDGET // (3 * cost), 1, min(every, 16)))
    return [divmod(int(i), case.heads_kv) for i in np.unique(np.linspace(every - 1, 0, count).round())]


def gather(case: Case, name: str, x: np.ndarray, heads) -> np.ndarray:
    """The rows that `heads` own in a tensor [batch, heads, length, dim]: query heads for o and d_q, else key heads."""
    group = case.heads_q // case.heads_kv if name in ("o", "d_q", "q", "d_o") else 1
    return np.stack([x[b, h * group : (h + 1) * group] for b, h in heads])


def attention(case: Case, q, k, v, d_o, number) -> dict:
    """One key head and its group: q [group, len_q, dim], k and v [len_kv, dim]. `number` is f64 (exact) or f32
    (plain)."""
    rounded = (
        (lambda x: x)
        if number == np.float64 or case.dtype == "f32"
        else lambda x: load(store(x, case.dtype), case.dtype)
    )
    q, k, v = (x.astype(number) for x in (q, k, v))
    c = number(1 / np.sqrt(case.dim))
    out = {"o": np.empty(q.shape, number)}
    if d_o is not None:
        d_o = d_o.astype(number)
        out |= {"d_q": np.empty(q.shape, number), "d_k": np.zeros(k.shape, number), "d_v": np.zeros(v.shape, number)}
        column, largest_lse = np.zeros(len(k), number), 0.0
    step = max(1, SCORES // case.len_kv)
    for head in range(len(q)):
        for first in range(0, case.len_q, step):
            rows = slice(first, min(first + step, case.len_q))
            s = rounded(c * (q[head, rows] @ k.T))
            if case.causal:
                s[np.arange(s.shape[1]) > np.arange(rows.start, rows.stop)[:, None]] = -np.inf
            top = s.max(axis=1, keepdims=True)
            p = np.exp(s - top)
            total = p.sum(axis=1, keepdims=True)
            p /= total
            o = out["o"][head, rows] = rounded(p) @ v
            if d_o is None:
                continue
            g = d_o[head, rows]
            d_s = p * (g @ v.T - (g * o).sum(axis=1, keepdims=True))
            out["d_q"][head, rows] = c * (d_s @ k)
            out["d_k"] += c * (d_s.T @ q[head, rows])
            out["d_v"] += p.T @ g
            column += p.sum(axis=0)
            largest_lse = max(largest_lse, float(np.abs(top + np.log(total)).max()))
    if d_o is not None:
        out |= {"column": float(column.max()), "lse": largest_lse}
    return out


def floors(case: Case, q, k, v, d_o, exact) -> dict:
    """As tests/support/tolerance.cc, with norms for the largest sums: Σ|q||k| ≤ |q||k|."""
    c, stored = 1 / np.sqrt(case.dim), HALF_ULP[case.dtype]
    norm = lambda x: float(np.sqrt((x.astype(np.float64) ** 2).sum(axis=-1)).max())
    largest = lambda x: float(np.abs(x).max())
    a = c * norm(q) * norm(k)
    floor = {"o": UNIT * (2 + a) * largest(v)}
    if d_o is not None:
        e, b = norm(d_o) * norm(v), a + 2 * exact["lse"]
        d_s = UNIT * (4 + b) * 2 * e + stored * e
        floor |= {
            "d_q": c * largest(k) * d_s,
            "d_k": c * largest(q) * exact["column"] * d_s,
            "d_v": UNIT * (2 + b) * largest(d_o) * exact["column"],
        }
    return {name: x + stored * largest(exact[name]) for name, x in floor.items()}


class Reference:
    def __init__(self, case: Case):
        self.case, self.heads = case, checked_heads(case)
        inputs = Inputs(case)
        self.exact, self.allowed = [], []
        for b, h in self.heads:
            tensors = {
                name: load(gather(case, name, getattr(inputs, name), [(b, h)])[0], case.dtype)
                for name in ("q", "k", "v", *(("d_o",) if case.backward else ()))
            }
            q, k, v, d_o = tensors["q"], tensors["k"][0], tensors["v"][0], tensors.get("d_o")
            exact, plain = attention(case, q, k, v, d_o, np.float64), attention(case, q, k, v, d_o, np.float32)
            floor = floors(case, q, k, v, d_o, exact)
            self.exact.append(exact)
            self.allowed.append(
                {name: 2 * float(np.abs(plain[name] - exact[name]).max()) + x for name, x in floor.items()}
            )

    def complaint(self, results: dict) -> str:
        """Empty if right. results: name → [heads checked, group or 1, length, dim], f32."""
        for name in ("d_q", "d_k", "d_v") if self.case.backward else ("o",):
            for index, (exact, allowed) in enumerate(zip(self.exact, self.allowed)):
                got = results[name][index].astype(np.float64).reshape(exact[name].shape)
                error = float(np.abs(got - exact[name]).max())
                if not error <= allowed[name]:
                    return f"{name} of head {self.heads[index]} is off by {error:.3g}, allowed {allowed[name]:.3g}"
        return ""
