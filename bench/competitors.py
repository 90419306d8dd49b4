"""Who is timed: each a process of its own, with the threads and the settings that are best for it.

One process each keeps their thread pools and allocators apart, and lets each have its own environment. Only what is to
be compared on the very same memory shares a process: rootdk's levels of statistics, and with everyone who is bound by
memory the reading of its K and V.
"""

import os
from dataclasses import dataclass, field

CORES = len(os.sched_getaffinity(0))

# Results of PyTorch are allocated in every call. This keeps glibc from handing the memory back and faulting it in
# again, and puts it on huge pages, where everyone else's is.
REUSE_MEMORY = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(1 << 36),
    "MALLOC_TOP_PAD_": str(1 << 26),
    "THP_MEM_ALLOC_ENABLE": "1",
}


@dataclass(frozen=True)
class Competitor:
    key: str  # in the JSON
    title: str
    module: str  # peers/<module>.py
    threads: int = CORES
    options: dict = field(default_factory=dict)
    environment: dict = field(default_factory=dict)
    # the key of the one whose process, threads and inputs it shares; takes part only where that one does
    guest_of: str = ""

    def home(self) -> str:
        """The key of the process it runs in."""
        return self.guest_of or self.key

    def variables(self) -> dict:
        """numpy's own BLAS gets one thread: it only makes inputs here."""
        return {"OMP_NUM_THREADS": str(self.threads), "OPENBLAS_NUM_THREADS": "1"} | self.environment


def read_key(whose: str) -> str:
    return whose + "-read"


def reading(host: Competitor) -> Competitor:
    """The limit of a row bound by memory: to read the bytes the host reads, and do nothing with them."""
    return Competitor(
        read_key(host.key),
        f"reading the K and V of {host.title}",
        "limits",
        options={"limit": "read"},
        guest_of=host.key,
    )


OURS = Competitor("rootdk", "rootdk", "rootdk")  # at its default level of statistics: basic
NO_STATS = Competitor("rootdk-no-stats", "rootdk, stats none", "rootdk", options={"stats": "none"}, guest_of="rootdk")
FULL_STATS = Competitor(
    "rootdk-full-stats", "rootdk, stats full", "rootdk", options={"stats": "full"}, guest_of="rootdk"
)
STATS = {"none": NO_STATS, "basic": OURS, "full": FULL_STATS}
SAMPLED_STATS = Competitor(
    "rootdk-sampled-stats",
    "rootdk, stats full from 1 in 8 blocks",
    "rootdk",
    options={"stats": "full", "sample": 8},
    guest_of="rootdk",
)
MATERIALISED = Competitor(
    "materialised", "PyTorch, scores materialised", "torch_materialised", environment=REUSE_MEMORY
)
ONE_THREAD = Competitor("rootdk-1-thread", "rootdk, 1 thread", "rootdk", threads=1)
PEERS = [
    Competitor("torch", "PyTorch", "torch_sdpa", environment=REUSE_MEMORY),
    Competitor("onnxruntime", "ONNX RT", "onnxruntime_mha"),
    Competitor("openblas", "2 × sgemm", "openblas_naive"),
]
READS = [reading(host) for host in (OURS, *PEERS)]
FMA = Competitor("fma", "multiply-add peak", "limits", options={"limit": "fma"})
FMA_ONE_THREAD = Competitor(
    "fma-1-thread", "multiply-add peak, 1 thread", "limits", threads=1, options={"limit": "fma"}
)
COPY = Competitor("copy", "copy bandwidth", "limits", options={"limit": "copy"})
LIMITS = [FMA, FMA_ONE_THREAD, *READS, COPY]

ALL = [OURS, NO_STATS, FULL_STATS, SAMPLED_STATS, MATERIALISED, ONE_THREAD, *PEERS, *LIMITS]


def entrants(case) -> list[Competitor]:
    """Who may take part in a row, hosts before their guests; some will say that they have no such thing."""
    chosen = [OURS, *PEERS]
    if not case.backward or case.group == "statistics":
        chosen += [competitor for competitor in STATS.values() if competitor is not OURS]
    if case.group == "statistics":
        chosen += [SAMPLED_STATS, MATERIALISED]
    if case.one_thread:
        chosen += [ONE_THREAD, FMA_ONE_THREAD]
    return chosen + ([*READS, COPY] if case.limit == "memory" else [FMA])
