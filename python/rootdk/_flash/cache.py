"""A cache of keys and values: rotated and written to in place, then attended to."""

from __future__ import annotations

import dataclasses
from typing import Any, Optional, Sequence

import torch
from torch import Tensor

from .._problem import flag, whole
from .arguments import Said, Span, cumulative, lengths, tensor
from .attend import Result, dense, packed
from .pages import Pages


@dataclasses.dataclass
class Cache:
    """What is known of a cache before a call; lists have one number per sequence."""

    k: Tensor
    v: Tensor
    lengths: list[int]  #: tokens that are there, padding on the left included
    starts: Optional[list[int]]  #: where they begin
    rows: Optional[Tensor]  #: of the cache, one per sequence
    pages: Optional[Pages]
    batch: int

    @staticmethod
    def of(
        k: Any, v: Any, batch: int, cache_seqlens: Any, cache_batch_idx: Any, cache_leftpad: Any, table: Any, name: str
    ) -> Cache:
        """`name` is what the caller calls the table of pages."""
        shape = "(batch_size_cache, seqlen_cache, nheads_k, headdim)"
        k, v = tensor("k_cache", k, shape), tensor("v_cache", v, shape)
        if k.shape[:3] != v.shape[:3]:
            raise ValueError(f"v_cache: {list(v.shape)}, but k_cache is {list(k.shape)}")
        pages = None if table is None else Pages(name, table, k)
        if pages is not None and cache_batch_idx is not None:
            raise ValueError(f"cache_batch_idx: there is a {name}, which says where each sequence lies")
        rows = None
        if cache_batch_idx is not None:
            rows = torch.tensor(
                lengths("cache_batch_idx", cache_batch_idx, batch, [k.shape[0] - 1] * batch), device=k.device
            )
        elif pages is None and k.shape[0] < batch:
            raise ValueError(f"k_cache: {k.shape[0]} sequences, but q has {batch}")
        most = [k.shape[1] if pages is None else pages.capacity()] * batch
        if cache_seqlens is None:
            there = most
        elif isinstance(cache_seqlens, Tensor):
            there = lengths("cache_seqlens", cache_seqlens, batch, most)
        else:
            there = [whole("cache_seqlens", cache_seqlens)] * batch
            if batch and not 0 <= there[0] <= most[0]:
                raise ValueError(f"cache_seqlens: {there[0]}, but from 0 to {most[0]} fits")
        starts = None if cache_leftpad is None else lengths("cache_leftpad", cache_leftpad, batch, there)
        return Cache(k, v, there, starts, rows, pages, batch)

    def fits(self, q: Tensor) -> None:
        """That queries can look at it: said before it is written to."""
        (heads, dim), (heads_k, dim_k) = q.shape[-2:], self.k.shape[-2:]
        if q.dtype != self.k.dtype or q.device != self.k.device:
            raise ValueError(f"q: {q.dtype} on {q.device}, but k_cache has {self.k.dtype} on {self.k.device}")
        if self.v.dtype != self.k.dtype or self.v.device != self.k.device:
            raise ValueError(f"v_cache: {self.v.dtype} on {self.v.device}, but k_cache has {self.k.dtype}")
        if dim != dim_k:
            raise ValueError(f"q: headdim is {dim}, but k_cache has {dim_k}")
        if heads_k == 0 or heads % heads_k:
            raise ValueError(f"k_cache: nheads_k is {heads_k}, which does not divide q's {heads} heads")

    def append(self, k: Tensor, v: Tensor, counts: Sequence[int]) -> None:
        """[total, heads, dim], so many tokens for each sequence, in place."""
        most = self.k.shape[1] if self.pages is None else self.pages.capacity()
        longer = [length + count for length, count in zip(self.lengths, counts)]
        for length, count, end in zip(self.lengths, counts, longer):
            if end > most:
                raise ValueError(f"k: {count} new tokens after {length}, but the cache holds {most}")
        for name, x, cache in (("k", k, self.k), ("v", v, self.v)):
            if x.shape[1:] != cache.shape[2:] or x.dtype != cache.dtype or x.device != cache.device:
                raise ValueError(
                    f"{name}: {x.dtype} {list(x.shape[1:])} a token on {x.device}, but {name}_cache has {cache.dtype} "
                    f"{list(cache.shape[2:])} on {cache.device}"
                )
        items, positions = tokens(self.lengths, counts, self.k.device)
        if self.pages is not None:
            self.pages.check(longer)
            items, positions = self.pages.places(items, positions)
        elif self.rows is not None:
            items = self.rows[items]
        self.k[items, positions], self.v[items, positions] = k, v
        self.lengths = longer

    def read(self) -> tuple[Tensor, Tensor]:
        """[batch, longest, heads, dim]; a view where each sequence has its own row."""
        longest = max(self.lengths, default=0)
        if self.pages is not None:
            self.pages.check(self.lengths)
            return self.pages.read(self.k, self.lengths), self.pages.read(self.v, self.lengths)
        rows: Any = slice(self.batch) if self.rows is None else self.rows
        return self.k[rows, :longest], self.v[rows, :longest]


def tokens(starts: Sequence[int], counts: Sequence[int], device: Any) -> tuple[Tensor, Tensor]:
    """(sequence, position) of so many tokens of each sequence from its start on."""
    items = [i for i, count in enumerate(counts) for _ in range(count)]
    places = [start + j for start, count in zip(starts, counts) for j in range(count)]
    return torch.tensor(items, dtype=torch.long, device=device), torch.tensor(places, dtype=torch.long, device=device)


@dataclasses.dataclass(frozen=True)
class Rotary:
    cos: Tensor  #: (positions, rotary_dim / 2)
    sin: Tensor
    interleaved: bool

    @staticmethod
    def of(cos: Any, sin: Any, interleaved: Any, dim: int) -> Optional[Rotary]:
        flag("rotary_interleaved", interleaved)
        if cos is None and sin is None:
            return None
        name = "rotary_sin" if sin is None else "rotary_cos"
        if cos is None or sin is None:
            raise ValueError(f"{name}: None, but its other half is there")
        cos, sin = (tensor(n, x, "(seqlen_ro, rotary_dim / 2)") for n, x in (("rotary_cos", cos), ("rotary_sin", sin)))
        if sin.shape != cos.shape:
            raise ValueError(f"rotary_sin: {list(sin.shape)}, but rotary_cos is {list(cos.shape)}")
        if 2 * cos.shape[1] > dim:
            raise ValueError(f"rotary_cos: rotates {2 * cos.shape[1]} dimensions, but there are {dim}")
        return Rotary(cos, sin, interleaved)

    def __call__(self, x: Tensor, positions: Tensor) -> Tensor:
        """x is [total, heads, dim]; in f32, rounded once."""
        if len(positions) and int(positions.max()) >= len(self.cos):
            raise ValueError(f"rotary_cos: {len(self.cos)} positions, but {int(positions.max())} is reached")
        half = self.cos.shape[1]
        c, s = (t[positions].float()[:, None] for t in (self.cos, self.sin))
        turned = x[..., : 2 * half].float()
        pairs = turned.unflatten(-1, (half, 2)) if self.interleaved else turned.unflatten(-1, (2, half)).mT
        a, b = pairs.unbind(-1)
        pairs = torch.stack((a * c - b * s, a * s + b * c), -1)
        turned = (pairs if self.interleaved else pairs.mT).flatten(-2)
        return torch.cat((turned.to(x.dtype), x[..., 2 * half :]), -1)


@torch.no_grad()
def with_cache(
    q: Any,
    cache: Cache,
    k: Any,
    v: Any,
    rotary: Optional[Rotary],
    said: Said,
    *,
    known: bool,
    cu_seqlens_q: Any = None,
    cu_seqlens_k_new: Any = None,
    max_seqlen_q: Any = None,
    rotary_seqlens: Any = None,
    qv: Any = None,
) -> Result:
    """`known` says whether the cache's lengths were given, without which nothing can be appended."""
    cache.fits(q)
    said.fits(q.shape[-2], cache.batch)
    if qv is not None and qv.shape[-1] != cache.v.shape[-1]:
        raise ValueError(f"qv: its last axis is {qv.shape[-1]}, but v_cache has {cache.v.shape[-1]}")
    if (k is None) != (v is None):
        raise ValueError(f"{'k' if k is None else 'v'}: None, but its other half is there")
    if k is not None and not known:
        raise ValueError("cache_seqlens: None, but without it there is no place for k and v")
    if rotary is not None and k is None:
        raise ValueError("rotary_cos: only new keys are rotated, but k is None")
    ends = (
        None
        if cu_seqlens_q is None
        else cumulative("cu_seqlens_q", cu_seqlens_q, q.shape[0], max_seqlen_q, "max_seqlen_q")
    )
    counts = [q.shape[1]] * cache.batch if ends is None else [b - a for a, b in zip(ends, ends[1:])]
    before, flat = cache.lengths, q if ends is not None else q.flatten(0, 1)
    turned = (
        before
        if rotary_seqlens is None
        else lengths("rotary_seqlens", rotary_seqlens, cache.batch, [2**31] * cache.batch)
    )
    if ends is not None and (ends[0], ends[-1]) != (0, q.shape[0]):
        raise ValueError(f"cu_seqlens_q: from {ends[0]} to {ends[-1]}, but q has {q.shape[0]} tokens")
    if k is not None:
        new = _counts(k, v, cache.batch, cu_seqlens_k_new)
        k, v = (x if cu_seqlens_k_new is not None else x.flatten(0, 1) for x in (k, v))
        if rotary is not None:
            items, positions = tokens(turned, new, q.device)
            k = rotary(k, positions)
            items, positions = tokens(turned, counts, q.device)
            if not said.local:  # all queries stand where the first new key does
                positions = torch.tensor(turned, device=q.device)[items]
            flat = rotary(flat, positions)
        cache.append(k, v, new)
    keys, values = cache.read()
    if qv is not None:
        flat = torch.cat((flat, qv if ends is not None else qv.flatten(0, 1)), -1)
        keys = torch.cat((keys, values), -1)
    if ends is None:
        structure: dict[str, Any] = dict(key_lengths=cache.lengths, key_starts=cache.starts, diagonal="last_key")
        return dense(flat.unflatten(0, q.shape[:2]), keys, values, said, **structure)
    return packed(flat, *_end_to_end(keys, values, cache, ends), said)


def _counts(k: Any, v: Any, batch: int, cu_seqlens: Any) -> list[int]:
    """New tokens of each sequence."""
    if cu_seqlens is None:
        shape = "(batch_size, seqlen_new, nheads_k, headdim)"
        for name, x in (("k", tensor("k", k, shape)), ("v", tensor("v", v, shape))):
            if x.shape[:2] != (batch, k.shape[1]):
                raise ValueError(f"{name}: {list(x.shape)}, but ({batch}, {k.shape[1]}, nheads_k, headdim) is wanted")
        return [k.shape[1]] * batch
    shape = "(total_k_new, nheads_k, headdim)"
    ends = cumulative("cu_seqlens_k_new", cu_seqlens, tensor("k", k, shape).shape[0])
    if len(ends) != batch + 1 or (ends[0], ends[-1]) != (0, k.shape[0]):
        raise ValueError(f"cu_seqlens_k_new: {ends}, but {batch} sequences of {k.shape[0]} tokens are wanted")
    if tensor("v", v, shape).shape[0] != k.shape[0]:
        raise ValueError(f"v: {v.shape[0]} tokens, but k has {k.shape[0]}")
    return [b - a for a, b in zip(ends, ends[1:])]


def _end_to_end(keys: Tensor, values: Tensor, cache: Cache, ends: list[int]) -> tuple[Tensor, Tensor, list[Span]]:
    """Keys of a cache as queries of differing lengths want them: packed."""
    starts = cache.starts or [0] * cache.batch
    spans, at = [], 0
    for i, (start, end) in enumerate(zip(starts, cache.lengths)):
        spans.append(Span(ends[i], ends[i + 1], at, at + end - start))
        at += end - start
    k, v = (
        torch.cat([x[i, start:end] for i, (start, end) in enumerate(zip(starts, cache.lengths))])
        for x in (keys, values)
    )
    return k, v, spans
