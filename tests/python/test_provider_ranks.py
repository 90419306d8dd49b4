"""PyTorch's own context parallel over rootdk as registered flash attention: its ring, its merge, our kernels."""

from __future__ import annotations

import pathlib
import threading

import pytest
import rootdk.torch
import torch
import torch.distributed as dist
import torch.nn.functional as F
from conftest import tolerance
from test_distributed import said_by

if not hasattr(torch.nn.attention, "register_flash_attention_impl") or not dist.is_available():
    pytest.skip("this torch has no such registry, or no ranks", allow_module_level=True)
pytest.importorskip("torch.distributed.tensor.experimental._context_parallel")

HERE = pathlib.Path(__file__).parent
RANKS = 4


@pytest.fixture(scope="module")
def found():
    return said_by([str(HERE / "provider_worker.py"), str(RANKS)])


@pytest.mark.parametrize("dtype", ["torch.float32", "torch.bfloat16"])
@pytest.mark.parametrize(
    "kind", ["causal True, balanced True", "causal True, balanced False", "causal False, balanced False"]
)
@pytest.mark.parametrize("method", ["allgather", "alltoall"])
def test_context_parallel_computes_the_whole(found, dtype, kind, method):
    for rank, one in enumerate(found):
        case = one[f"{dtype}, {kind}, {method}"]
        assert max(case["off"]) <= 1, case
        # A step of the ring is a call forward and one backward, but for those that causality leaves out.
        steps = RANKS if "causal False" in kind or "balanced True" in kind else rank + 1
        assert case["calls"] == 2 * steps


def test_the_bounds_say_something(found):
    assert max(off for case in found[0].values() if isinstance(case, dict) for off in case["off"]) > 0.01


def test_on_the_cpu_torch_does_not_route_its_own_calls(found):
    """What docs/python/registry.md says; if torch learns it, so does the page."""
    for one in found:
        assert "_scaled_dot_product_flash_attention_for_cpu" in one["own"] and "sharding strategy" in one["own"]


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(
    not torch.cuda.is_available(), reason="no GPU"))])  # fmt: skip
def test_the_ring_over_threads(device):
    """Ranks that share one device: torch's threaded process group."""
    from torch.distributed.tensor.experimental._context_parallel import _attention
    from torch.testing._internal.distributed import multi_threaded_pg

    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    g = torch.Generator().manual_seed(1)
    q, k, v = (torch.randn(1, 2, 8 * RANKS, 64, generator=g).to(device, dtype) for _ in range(3))
    exact = F.scaled_dot_product_attention(q.double(), k.double(), v.double(), is_causal=True)
    out, raised = [None] * RANKS, []
    store = dist.HashStore()

    def work(rank):
        try:
            dist.init_process_group("threaded", rank=rank, world_size=RANKS, store=store)
            mesh = dist.init_device_mesh(device, (RANKS,))
            mine = [x.chunk(RANKS, 2)[rank] for x in (q, k, v)]
            out[rank] = _attention._scaled_dot_product_ring_flash_attention(mesh, *mine, is_causal=True)[0]
        except BaseException as error:
            raised.append(error)
            multi_threaded_pg.ProcessLocalGroup.exception_handle(error)
        finally:
            dist.destroy_process_group()

    balanced, _attention._cp_options.enable_load_balance = _attention._cp_options.enable_load_balance, False
    world = multi_threaded_pg._install_threaded_pg()
    multi_threaded_pg.ProcessLocalGroup.reset()
    torch._C._distributed_c10d._set_thread_isolation_mode(True)
    torch.nn.attention.activate_flash_attention_impl("ROOTDK")
    try:
        threads = [threading.Thread(target=work, args=(rank,)) for rank in range(RANKS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    finally:
        torch.nn.attention.restore_flash_attention_impl()
        torch._C._distributed_c10d._set_thread_isolation_mode(False)
        multi_threaded_pg._uninstall_threaded_pg()
        _attention._cp_options.enable_load_balance = balanced
    assert world is not None and not raised, raised
    off = (torch.cat(out, 2).double() - exact).abs().max()
    assert off <= RANKS * (2 * tolerance(q.float().cpu().numpy(), k.float().cpu().numpy(), v.float().cpu().numpy())
                           + (2.0**-8 if device == "cuda" else 0) * float(v.abs().max()))  # fmt: skip


def test_what_has_no_dropout_says_so():
    torch.nn.attention.activate_flash_attention_impl("ROOTDK")
    try:
        x = torch.randn(1, 2, 8, 16)
        with pytest.raises(RuntimeError, match="dropout_p: rootdk's flash attention has no dropout"):
            torch.ops.aten._scaled_dot_product_flash_attention(x, x, x, dropout_p=0.5)
        assert rootdk.torch is not None
    finally:
        torch.nn.attention.restore_flash_attention_impl()
    with pytest.raises(NotImplementedError):
        torch.ops.aten._scaled_dot_product_flash_attention(x, x, x)
