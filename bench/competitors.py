"""Who is timed: each a process of its own, with the threads and the settings that are best for it.

One process each keeps their thread pools and allocators apart, and lets each have its own environment.
"""
import os
from dataclasses import dataclass, field

CORES = len(os.sched_getaffinity(0))

# Results of PyTorch are allocated in every call. This keeps glibc from handing the memory back and faulting it in again,
# and puts it on huge pages, where everyone else's is.
REUSE_MEMORY = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(1 << 36), "MALLOC_TOP_PAD_": str(1 << 26), "THP_MEM_ALLOC_ENABLE": "1"}


@dataclass(frozen=True)
class Competitor:
    key: str  # in the JSON
    title: str
    module: str  # peers/<module>.py
    threads: int = CORES
    options: dict = field(default_factory=dict)
    environment: dict = field(default_factory=dict)

    def variables(self) -> dict:
        """numpy's own BLAS gets one thread: it only makes inputs here."""
        return {"OMP_NUM_THREADS": str(self.threads), "OPENBLAS_NUM_THREADS": "1"} | self.environment


OURS = Competitor("rootdk", "rootdk", "rootdk")
NO_STATS = Competitor("rootdk-no-stats", "rootdk, stats none", "rootdk", options={"stats": "none"})
ONE_THREAD = Competitor("rootdk-1-thread", "rootdk, 1 thread", "rootdk", threads=1)
PEERS = [
    Competitor("torch", "PyTorch", "torch_sdpa", environment=REUSE_MEMORY),
    Competitor("onnxruntime", "ONNX RT", "onnxruntime_mha"),
    Competitor("openblas", "2 × sgemm", "openblas_naive"),
]
LIMITS = [Competitor(kind, title, "limits", options={"limit": kind})
          for kind, title in (("fma", "multiply-add peak"), ("read", "read bandwidth"), ("copy", "copy bandwidth"))]
ONE_THREAD_LIMIT = Competitor("fma-1-thread", "multiply-add peak, 1 thread", "limits", threads=1, options={"limit": "fma"})

ALL = [OURS, NO_STATS, ONE_THREAD, *PEERS, *LIMITS, ONE_THREAD_LIMIT]


def entrants(case) -> list[Competitor]:
    """Who may take part in a row; some will say that they have no such thing."""
    chosen = [OURS, *PEERS, *LIMITS]
    if not case.backward:
        chosen.append(NO_STATS)  # backward collects none
    if case.one_thread:
        chosen += [ONE_THREAD, ONE_THREAD_LIMIT]
    return chosen
