"""What a team knows of its group: where its packets lie, and that nothing is taken for it that belongs to another. No
ranks are started but this one."""

from __future__ import annotations

import gc
import weakref

import pytest

pytest.importorskip("torch")
import rootdk.distributed as rd
import torch
import torch.distributed as dist
from rootdk.distributed import _statistics, _team
from rootdk.distributed._team import Team

if not dist.is_available():
    pytest.skip("torch was built without distributed", allow_module_level=True)


@pytest.fixture
def alone(tmp_path):
    """A group of one rank."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/ranks", rank=0, world_size=1)
    yield dist.group.WORLD
    dist.destroy_process_group()


CPU, FIRST, SECOND = torch.device("cpu"), torch.device("cuda", 1), torch.device("cuda", 2)


@pytest.mark.parametrize(
    "config, like, wanted",
    [
        ("cpu:gloo,cuda:gloo", torch.empty(0), CPU),
        ("cpu:gloo,cuda:nccl", torch.empty(0), CPU),
        ("cpu:mpi,cuda:mpi", None, CPU),
        ("cuda:nccl", torch.empty(0), FIRST),  # what has failed lies anywhere, and the others listen there
        ("cuda:nccl", None, FIRST),
        ("cuda:nccl", "nonsense", FIRST),
        ("cuda:nccl", SECOND, SECOND),
    ],
)
def test_packets_lie_where_the_group_can_send_from(alone, monkeypatch, config, like, wanted):
    monkeypatch.setattr(dist, "get_backend_config", lambda group: config)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: FIRST.index)
    if isinstance(like, torch.device):  # there is no such machine here

        class Elsewhere(torch.Tensor):
            device = like

        like = torch.empty(0).as_subclass(Elsewhere)
    assert Team.of(None).packet_device(like) == wanted


def test_what_is_known_of_a_group_goes_with_it(tmp_path):
    """A later group may get its id on some ranks and not on others: what is kept by id, ranks would disagree about."""
    q = torch.ones(1, 1, 3, 8, requires_grad=True)
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/ranks", rank=0, world_size=1)
    out = rd.attention(q, q, q, way="ring")
    team = Team.of(None)
    team.get_ready(q)
    _statistics._gathered(team, b"text")
    assert len(_team._ready) == len(_statistics._room) == 1
    group = weakref.ref(dist.group.WORLD)
    dist.destroy_process_group()
    gc.collect()
    assert group() is None and not len(_team._ready) and not len(_statistics._room)
    with pytest.raises(ValueError, match="group: it has been destroyed"):
        assert team.group
    assert out.requires_grad


@pytest.mark.parametrize("timeout, error", [(0, ValueError), ("soon", TypeError), (float("nan"), ValueError)])
def test_a_timeout_that_is_none_is_refused(alone, timeout, error):
    q = torch.ones(1, 1, 3, 8)
    with pytest.raises(error, match="timeout"):
        rd.attention(q, q, q, timeout=timeout)
    with pytest.raises(error, match="timeout"):
        rd.merge({}, timeout=timeout)


def test_what_is_no_statistics_is_refused(alone):
    with pytest.raises(TypeError, match="shares: float, but Stats or RankStats are wanted"):
        rd.merge({"a": 1.0})
