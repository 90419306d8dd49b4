"""The rows of the benchmark: which shapes are timed, and why each is there."""

from dataclasses import asdict, dataclass, replace

BYTES = {"f32": 4, "f16": 2, "bf16": 2}


@dataclass(frozen=True)
class Case:
    name: str
    group: str  # rows that a bar is about, see bars.py
    batch: int = 1
    heads_q: int = 8
    heads_kv: int = 8
    len_q: int = 1024
    len_kv: int = 1024
    dim: int = 64
    causal: bool = False  # only where len_q = len_kv, so that all peers mean the same diagonal
    dtype: str = "f32"
    backward: bool = False
    # K/V pairs that calls take in turn: more than the last-level cache holds, as the layers of a model do
    caches: int = 1
    one_thread: bool = False  # also time rootdk on one thread
    limit: str = "fma"  # what of the machine it should exhaust: "fma" or "memory"

    def pairs(self) -> int:
        """Pairs of a query and a key that it may see, in one head."""
        return self.len_q * (self.len_q + 1) // 2 if self.causal else self.len_q * self.len_kv

    def work(self) -> float:
        """Of one call: floating-point operations of the products (2 forward, 5 backward), or bytes of K and V read
        once."""
        if self.limit == "memory":
            return 2.0 * self.batch * self.heads_kv * self.len_kv * self.dim * BYTES[self.dtype]
        return (10.0 if self.backward else 4.0) * self.batch * self.heads_q * self.pairs() * self.dim

    def as_dict(self) -> dict:
        return asdict(self)


def square(name, length, dim, **more) -> Case:
    return Case(name=f"{name} {length:,} × d {dim}", len_q=length, len_kv=length, dim=dim, **more)


def causal(case: Case) -> Case:
    return replace(case, name=case.name + ", causal", causal=True)


def gradient(case: Case) -> Case:
    return replace(case, name=case.name.replace(case.group, "backward", 1), group="backward", backward=True)


def prefill() -> list[Case]:
    cases = [
        square("prefill", length, dim, group="prefill", one_thread=length < 8192)
        for length, dim in ((1024, 64), (2048, 128), (8192, 128))
    ]
    return [variant for case in cases for variant in (case, causal(case))]


def training() -> list[Case]:
    return [gradient(case) for case in prefill()]


def short() -> list[Case]:
    """Many small heads: what a call costs beside its arithmetic, and rows that do not fill a tile."""
    cases = [square("short", length, 64, group="short", batch=64) for length in (32, 64, 128, 256)]
    bert = square("BERT-base", 512, 64, group="encoder", batch=8, heads_q=12, heads_kv=12)
    vit = square("ViT-B/16", 197, 64, group="short", batch=8, heads_q=12, heads_kv=12)
    return [
        *cases,
        causal(cases[2]),
        bert,
        vit,
        replace(cases[2], name="backward " + cases[2].name, group="backward, short", backward=True),
        replace(bert, name="backward " + bert.name, group="backward, short", backward=True),
    ]


def decode() -> list[Case]:
    """One query against a long cache: bandwidth."""
    one = Case(name="", group="decode", heads_q=32, len_q=1, len_kv=8192, dim=128, limit="memory", caches=4)
    gqa = [
        replace(one, name=f"decode GQA 32/8, 8,192 keys, {dtype}", dtype=dtype, caches=16 // BYTES[dtype])
        for dtype in ("f32", "bf16", "f16")
    ]
    mha = [
        replace(one, name=f"decode 32 heads, 8,192 keys, {dtype}", dtype=dtype, heads_kv=32, caches=8 // BYTES[dtype])
        for dtype in ("f32", "bf16")
    ]
    return gqa + mha


def few_queries() -> list[Case]:
    """A chunk of a prompt, or speculative tokens, against a cache."""
    return [
        Case(name=f"{queries} queries × 4,096 keys", group="few queries", len_q=queries, len_kv=4096, dim=128)
        for queries in (8, 16, 32, 64)
    ]


def long() -> list[Case]:
    """One head: nothing to spread over threads but queries and keys."""
    return [
        Case(
            name=f"1 head, {queries:,} × 65,536 keys",
            group="long",
            heads_q=1,
            heads_kv=1,
            len_q=queries,
            len_kv=65536,
            dim=128,
        )
        for queries in (64, 1024)
    ]


def odd() -> list[Case]:
    """Sizes that no tile divides."""
    return [
        square("odd", 1000, 80, group="odd"),
        causal(square("odd", 1000, 96, group="odd")),
        square("odd", 1537, 96, group="odd"),
        causal(square("odd", 1537, 64, group="odd")),
        square("odd", 1000, 200, group="odd"),
        causal(square("odd", 1537, 200, group="odd")),
    ]


def half() -> list[Case]:
    """16-bit storage where arithmetic counts: peers may multiply in bf16, rootdk does in f32."""
    return [
        replace(square("prefill", 2048, 128, group="half"), name=f"prefill 2,048 × d 128, {dtype}", dtype=dtype)
        for dtype in ("bf16", "f16")
    ]


def statistics() -> list[Case]:
    """What it costs to look, and what it costs without a kernel that can."""
    cases = [square("statistics", 2048, dim, group="statistics") for dim in (128, 64)]
    return [*cases, replace(cases[0], name="statistics, backward 2,048 × d 128", backward=True)]


def all_cases() -> list[Case]:
    return statistics() + prefill() + training() + short() + decode() + few_queries() + long() + odd() + half()
