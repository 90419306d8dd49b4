"""Random problems for attention over ranks: what is asked, what it must give (written out in double), and how far off a
result may be."""

from __future__ import annotations

import functools
import random

import numpy as np
import rootdk.torch
import torch
from rootdk.distributed import Layout

UNIT = {torch.float64: 2.0**-53, torch.float32: 2.0**-24, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}


def starts(rng, total):
    """Of documents of any lengths, empty ones among them."""
    return [0, *sorted(rng.randint(0, total) for _ in range(rng.randint(0, 5))), total]


class Case:
    """One problem, the same on every rank that draws it from the same seed."""

    def __init__(self, seed, ranks):
        rng = self.rng = random.Random(seed)
        self.seed, self.ranks = seed, ranks
        self.batch = rng.choice([1, 1, 2])
        self.heads, self.heads_kv = rng.choice([(1, 1), (2, 1), (3, 3), (4, 2), (6, 2), (5, 1), (8, 4)])
        self.dim, self.dim_v = rng.choice([4, 8, 16]), rng.choice([4, 8, 12])
        self.dtype = rng.choice([torch.float32] * 4 + [torch.bfloat16, torch.float16, torch.float64])
        self.len_q = self.len_kv = rng.choice([rng.randint(0, 8), rng.randint(9, 80)])
        self.arguments = {}
        self._layout(rng)
        self._mask(rng)
        self._scores(rng)
        self._tensors()

    def _layout(self, rng):
        kind = rng.choice(["contiguous", "contiguous", "zigzag", "dealt", "two"])
        if kind == "contiguous":
            cuts = sorted(rng.randint(0, self.len_q) for _ in range(self.ranks - 1))
            lengths = np.diff([0, *cuts, self.len_q]).tolist()
            self.q_layout = self.k_layout = Layout.contiguous(lengths)
            self.layout = "contiguous"
        elif kind == "zigzag":
            self.q_layout = self.k_layout = Layout.zigzag(self.len_q, self.ranks)
            self.layout = "zigzag"
        elif kind == "dealt":
            self.packed = starts(rng, self.len_q)
            self.layout = self.q_layout = self.k_layout = Layout.dealt(self.packed, self.ranks)
        else:  # queries and keys of different sequences
            self.len_kv = rng.randint(0, 80)
            self.q_layout = Layout.even(self.len_q, self.ranks)
            self.k_layout = Layout.zigzag(self.len_kv, self.ranks)
            self.layout = (self.q_layout, self.k_layout)

    def _mask(self, rng):
        a, total = self.arguments, self.len_q
        a["causal"] = rng.random() < 0.6
        if rng.random() < 0.4:
            a["diagonal"] = rng.choice(["top_left", "last_key", rng.randint(-9, 30)])
        if rng.random() < 0.3:
            a["window"] = rng.choice([(rng.randint(0, 30), None), (None, rng.randint(0, 9)), rng.randint(0, 20)])
        if hasattr(self, "packed"):
            a["documents"] = self.packed
        elif rng.random() < 0.3:
            if self.len_q != self.len_kv:
                q, k = starts(rng, total), starts(rng, self.len_kv)
                n = min(len(q), len(k)) - 1
                a["documents"] = ([*q[:n], total], [*k[:n], self.len_kv])
            elif rng.random() < 0.4:
                a["documents"] = [starts(rng, total) for _ in range(self.batch)]
            else:
                a["documents"] = starts(rng, total)
        for name, most in (("key_lengths", self.len_kv), ("query_lengths", total)):
            if rng.random() < 0.2:
                a[name] = [rng.randint(0, most) for _ in range(self.batch)]
        if a.get("diagonal") == "last_key" and ("key_lengths" not in a or "documents" in a):
            a["diagonal"] = "top_left"  # it measures from key lengths
        if rng.random() < 0.15:
            most = a.get("key_lengths", [self.len_kv] * self.batch)
            a["key_starts"] = [rng.randint(0, n) for n in most]

    def _scores(self, rng):
        a, heads = self.arguments, self.heads
        if rng.random() < 0.3:
            a["softcap"] = rng.choice([2.0, 5.0])
        if rng.random() < 0.3:
            a["sink"] = [rng.uniform(-2, 3) for _ in range(heads)]
        if rng.random() < 0.15:
            a["alibi"] = [rng.uniform(0.02, 0.5) for _ in range(heads)]
        kind = rng.random()
        if kind < 0.15:
            a["scale"] = rng.uniform(0.1, 0.6)
        elif kind < 0.3:
            a["scale"] = [rng.uniform(0.1, 0.6) for _ in range(heads)]
        elif kind < 0.4:
            a["scale"] = rng.choice(["sqrt_dk*ssmax(0.43)", "entropy_invariant", "dk(2)*llama4"])
            if a["scale"].endswith("llama4") and rng.random() < 0.5:
                a.update(causal=False, diagonal=8170)  # where it begins to matter
                a.pop("window", None)
        self.table = None
        if rng.random() < 0.2 and not isinstance(a.get("scale"), str):
            self.table = rng.choice(["mask", "bias"])

    def _tensors(self):
        g = torch.Generator().manual_seed(self.seed)

        def draw(heads, length, dim):
            return torch.randn(self.batch, heads, length, dim, generator=g, dtype=torch.float64).to(self.dtype)

        self.q, self.k = draw(self.heads, self.len_q, self.dim), draw(self.heads_kv, self.len_kv, self.dim)
        self.v, self.d_out = draw(self.heads_kv, self.len_kv, self.dim_v), draw(self.heads, self.len_q, self.dim_v)
        self.d_lse = draw(self.heads, self.len_q, 1)[..., 0] if self.rng.random() < 0.3 else None
        self.mask = self.bias = None
        if self.table is not None:
            shape = [self.rng.choice([1, n]) for n in (self.batch, self.heads, self.len_q, self.len_kv)]
            if self.table == "mask":
                self.mask = torch.rand(shape, generator=g) < 0.8
            else:
                self.bias = torch.randn(shape, generator=g, dtype=torch.float64).to(self.dtype)

    def __repr__(self):
        shape = f"batch {self.batch}, heads {self.heads}/{self.heads_kv}, dims {self.dim}, {self.dim_v}"
        lengths = f"lengths {self.len_q}, {self.len_kv}, {self.layout}"
        return f"seed {self.seed}, {self.ranks} ranks, {self.dtype}, {shape}, {lengths}, {self.table}, {self.arguments}"

    # Of one rank -----------------------------------------------------------------------------------------------------
    def part(self, x, rank, layout=None):
        """Along the third axis."""
        where = torch.from_numpy((layout or self.q_layout).positions(rank))
        return x.index_select(2, where).clone()

    def local(self, rank):
        """q, k, v and arguments of a rank, with gradients."""
        tensors = [self.part(self.q, rank), *(self.part(x, rank, self.k_layout) for x in (self.k, self.v))]
        arguments = dict(self.arguments, layout=self.layout)
        for name in ("mask", "bias"):
            table = getattr(self, name)
            if table is not None:
                arguments[name] = self.part(table, rank) if table.shape[2] > 1 else table.clone()
        for name in ("sink", "scale"):
            if isinstance(arguments.get(name), list):
                arguments[name] = torch.tensor(arguments[name], requires_grad=True)
        if self.bias is not None:
            arguments["bias"].requires_grad_()
        return [x.requires_grad_() for x in tensors], arguments

    # Written out -----------------------------------------------------------------------------------------------------
    def runs(self, b, i):
        """The keys that structural masks leave a query: begin, end, where it stands, where its document begins."""
        a = self.arguments
        q, k = [0, self.len_q], [0, self.len_kv]
        documents = a.get("documents")
        if documents is not None:
            q, k = documents if isinstance(documents, tuple) else (documents, documents)
            if isinstance(q[0], list):
                q, k = q[b], k[b]
        d = next((d for d in range(len(q) - 1) if q[d] <= i < q[d + 1]), None)
        key_lengths = a.get("key_lengths", [self.len_kv] * self.batch)
        query_lengths = a.get("query_lengths", [self.len_q] * self.batch)
        if d is None or i >= query_lengths[b]:
            return 0, 0, 0, 0
        diagonal = a.get("diagonal", "bottom_right")
        offset = {
            "bottom_right": (k[d + 1] - k[d]) - (q[d + 1] - q[d]),
            "top_left": 0,
            "last_key": key_lengths[b] - query_lengths[b],
        }.get(diagonal, diagonal)
        at = k[d] + i - q[d] + offset
        first = begin = max(k[d], a.get("key_starts", [0] * self.batch)[b])
        end = min(k[d + 1], key_lengths[b])
        window = a.get("window", (None, None))
        left, right = window if isinstance(window, tuple) else (window, window)
        if a["causal"]:
            end = min(end, at + 1)
        if left is not None:
            begin = max(begin, at - left)
        if right is not None:
            end = min(end, at + right + 1)
        return begin, max(begin, end), at, first

    @functools.cached_property
    def written_out(self):
        """(visible [batch, 1, len_q, len_kv], distance likewise, factor of the scale [batch, 1, len_q, 1])."""
        visible = torch.zeros(self.batch, 1, self.len_q, self.len_kv, dtype=torch.bool)
        distance = torch.zeros(self.batch, 1, self.len_q, self.len_kv, dtype=torch.float64)
        factor = torch.ones(self.batch, 1, self.len_q, 1, dtype=torch.float64)
        keys = torch.arange(self.len_kv)
        rule = self.arguments.get("scale", "")
        for b in range(self.batch):
            for i in range(self.len_q):
                begin, end, at, first = self.runs(b, i)
                visible[b, 0, i, begin:end] = True
                distance[b, 0, i] = (at - keys).abs()
                n = max(end - begin, 1)
                if isinstance(rule, str) and "ssmax" in rule:
                    factor[b, 0, i] = 0.43 * np.log(n)
                elif isinstance(rule, str) and "entropy" in rule:
                    factor[b, 0, i] = np.log(n) / np.log(512)
                elif isinstance(rule, str) and "llama4" in rule:
                    factor[b, 0, i] = 1 + 0.1 * np.log(1 + np.floor((max(at - first, 0) + 1) / 8192))
        if self.mask is not None:
            visible = visible & self.mask
        return visible, distance, factor

    def scale_of_heads(self):
        scale = self.arguments.get("scale", "")
        if isinstance(scale, str):
            value = 2.0 / self.dim if scale.startswith("dk(2)") else self.dim**-0.5
            return torch.full((self.heads,), value, dtype=torch.float64)
        return torch.as_tensor(scale, dtype=torch.float64).expand(self.heads).clone()

    def by_hand(self, dtype):
        """(o, dq, dk, dv, dscale, dsink, dbias), with scores and probabilities rounded to the dtype."""
        q, k, v = (x.detach().to(dtype).requires_grad_() for x in (self.q, self.k, self.v))
        scale = self.scale_of_heads()
        if isinstance(self.arguments.get("scale"), list):  # those are float32, whatever q is
            scale = scale.float().double()
        scale.requires_grad_()
        sink = torch.tensor(self.arguments.get("sink", []), dtype=torch.float32).double().requires_grad_()
        bias = None if self.bias is None else self.bias.detach().double().requires_grad_()
        visible, distance, factor = self.written_out
        group = self.heads // self.heads_kv
        s = q @ k.repeat_interleave(group, 1).mT
        s = s * (scale[None, :, None, None] * factor).to(dtype)
        if "softcap" in self.arguments:
            s = self.arguments["softcap"] * torch.tanh(s / self.arguments["softcap"])
        if bias is not None:
            s = s + bias.to(dtype)
        if "alibi" in self.arguments:
            slopes = torch.tensor(self.arguments["alibi"], dtype=torch.float32).double()[None, :, None, None]
            s = s - (slopes * distance).to(dtype)
        s = s.masked_fill(~visible, -torch.inf)
        if "sink" in self.arguments:
            s = torch.cat([s, sink.to(dtype)[None, :, None, None].expand(*s.shape[:3], 1)], -1)
        seen = torch.isfinite(s).any(-1, keepdim=True)  # rows that see something
        p = torch.where(seen, torch.softmax(torch.where(seen, s, torch.zeros_like(s)), -1), torch.zeros_like(s))
        p = p[..., : self.len_kv]
        if dtype == torch.float64:
            self.p = p.detach()
        out = p @ v.repeat_interleave(group, 1)
        total = (out * self.d_out.to(dtype)).sum()
        if self.d_lse is not None:
            lse = torch.logsumexp(torch.where(seen, s, torch.zeros_like(s)), -1)
            total = total + (torch.where(seen[..., 0], lse, torch.zeros_like(lse)) * self.d_lse.to(dtype)).sum()
        if total.requires_grad:
            total.backward()
        learned = [q, k, v, scale, *([sink] if sink.numel() else []), *([bias] if bias is not None else [])]
        names = [
            "dq",
            "dk",
            "dv",
            "dscale",
            *(["dsink"] if sink.numel() else []),
            *(["dbias"] if bias is not None else []),
        ]
        grads = [torch.zeros_like(x) if x.grad is None else x.grad for x in learned]
        return {"o": out.detach().double(), **{n: g.double() for n, g in zip(names, grads)}}

    @functools.cached_property
    def expected(self):
        """In double, and as the plain method has it."""
        return self.by_hand(torch.float64), self.by_hand(self.dtype)

    @functools.cached_property
    def of_one_rank(self):
        """Statistics."""
        given = {name: x for name, x in (("mask", self.mask), ("bias", self.bias)) if x is not None}
        with torch.no_grad():
            return rootdk.torch.attention(self.q, self.k, self.v, **self.arguments, **given, stats="full")[1]

    def floors(self, exact):
        """The rounding that nobody avoids. With u of f32 and A = max (c·Σ|q||k| + |bias|), an f32 score is off by u·A
        and a probability by that share of itself: u·(2 + A) of the sum of what is added, taken absolutely; and a
        result is rounded to its dtype once. A merge rounds shares e^{lse − total} of two or more parts once more each:
        as often as there are ranks, and an f32 lse is off by u·(A + ln n) where it is handed on."""
        if self.len_q * self.len_kv == 0:
            return dict.fromkeys(exact, 0.0)
        Q, K, V, D = (x.detach().double() for x in (self.q, self.k, self.v, self.d_out))
        group = self.heads // self.heads_kv
        K, V = K.repeat_interleave(group, 1), V.repeat_interleave(group, 1)
        _, distance, factor = self.written_out
        c = (self.scale_of_heads()[None, :, None, None] * factor).abs()
        a = float((c * (Q.abs() @ K.abs().mT)).max())
        if self.bias is not None:
            a += float(self.bias.abs().max())
        if "alibi" in self.arguments:
            a += max(self.arguments["alibi"]) * float(distance.max())
        a += np.log(self.len_kv) + max(map(abs, self.arguments.get("sink", [0.0])))
        d_s = 2 * float((D.abs() @ V.abs().mT).max())
        if self.d_lse is not None:
            d_s += float(self.d_lse.abs().max())
        top = float(c.max())
        rows = self.len_q * group
        pairs = self.batch * self.len_q
        sums = {
            "o": float(V.abs().max()),
            "dq": top * d_s * float(K.abs().max()),
            "dk": top * d_s * float(Q.abs().max()) * rows,
            "dv": float(D.abs().max()) * rows,
            "dscale": d_s * float((Q.abs() @ K.abs().mT).max()) * pairs,
            "dsink": d_s * pairs,
            "dbias": d_s * (pairs * self.heads if self.bias is not None else 1),
        }
        u, wide = UNIT[self.dtype], min(UNIT[self.dtype], 2.0**-24)
        own = {"dscale": 2.0**-24, "dsink": 2.0**-24}  # float32 whatever the others are
        # Backward has D = dO·O of the output as it is stored, so D is off by u·Σ|dO||O|, and with it every dS of its
        # row by p times as much: Σ over rows of p·δD·|q·k| is what scale gets of that, Σ of p·δD what sinks get and,
        # over what shares an element, a bias; and with c times what it is multiplied with, dq and dk.
        d = (D.abs() * exact["o"].abs()).sum(-1)
        products = (Q @ K.mT).abs().max(-1).values
        columns = (self.p * d.unsqueeze(-1)).sum(2).unflatten(1, (self.heads_kv, group)).sum(2)
        stored = {
            "dscale": float((d * products).sum((0, 2)).max()),
            "dsink": float(d.sum((0, 2)).max()),
            "dq": top * float(d.max()) * float(K.abs().max()),
            "dk": top * float(columns.max()) * float(Q.abs().max()),
        }
        if self.bias is not None:
            shared = [axis for axis, size in enumerate(self.bias.shape) if size == 1]
            each = self.p * d.unsqueeze(-1)
            stored["dbias"] = float((each.sum(shared) if shared else each).max())
        return {
            name: own.get(name, wide) * (2 + a) * (1 + self.ranks) * sums[name]
            + own.get(name, u) * float(x.abs().max() if x.numel() else 0)
            + u * stored.get(name, 0.0)
            for name, x in exact.items()
        }
