"""What a team knows of its group: where its packets lie, and that nothing is taken for it that belongs to another. No
ranks are started but this one."""

from __future__ import annotations

import gc
import threading
import weakref

import pytest

pytest.importorskip("torch")
import rootdk.distributed as rd
import torch
import torch.distributed as dist
from rootdk.distributed import _partial, _statistics, _team
from rootdk.distributed._faults import Board, explain
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


def test_a_group_of_others_is_refused_in_words(alone):
    """What new_group returns where this rank is not in it."""
    q = torch.ones(1, 1, 3, 8)
    with pytest.raises(ValueError, match="group: this rank, 0, is not in it"):
        rd.attention(q, q, q, group=dist.GroupMember.NON_GROUP_MEMBER)


@pytest.mark.parametrize("backward", [False, True])
def test_a_second_thread_is_refused_while_a_group_is_in_use(alone, monkeypatch, backward):
    """Which of two calls comes first, each rank would decide by itself. The thread itself may call again: a checkpoint
    does, in backward."""
    q = torch.ones(1, 1, 3, 8, requires_grad=True)
    inner, said = _partial.Gradients.add if backward else _partial.Outputs.add, []

    def other():
        try:
            rd.merge({})
        except Exception as error:
            said.append(str(error))

    def add(*arguments):
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        said.append(rd.merge({}))
        return inner(*arguments)

    monkeypatch.setattr(_partial.Gradients if backward else _partial.Outputs, "add", add)
    rd.attention(q, q, q, way="ring").sum().backward()
    assert said == ["group: another thread is in a call over it; each thread wants a group of its own", {}]
    other()
    assert len(said) == 2, "and afterwards it may"


def test_an_error_has_none_of_what_gloo_says(alone):
    """Addresses, its own source, and its good wishes: they are in the cause."""
    board = Board("it", 2, 0)
    error = RuntimeError("[/w/gloo/pair.cc:553] Connection closed by peer [127.0.0.1]:5. GLHF!")
    text = str(explain(board, error, "checks", 1, 2.0))
    assert text == "rank 0 of 2: checks: rank 1 closed its connection and said nothing: dead"
    board.write("waited for rank 1")
    Board("it", 2, 1).write("waited for rank 0")
    found = explain(board, error, "checks", 1, 2.0)
    assert "all ranks are alive" in str(found) and "GLHF" not in str(found) and found.ranks == ()


@pytest.mark.parametrize(
    "said, wanted",
    [
        ({0: "waited for rank 1", 1: "waited for rank 2"}, (2,)),  # 3 has not written yet, but nobody waits for it
        ({0: "waited for rank 1", 1: "waited for rank 0"}, (2, 3)),
        ({0: "waited for rank 1", 1: "raised ValueError: x"}, (1,)),
        ({0: "waited for rank 1", 1: "out of step: rank 2 is elsewhere"}, ()),
        ({0: "waited for rank 1", 1: "waited for rank 3", 2: "waited for rank 1", 3: "waited for rank 0"}, ()),
        (None, ()),
    ],
)
def test_who_is_to_blame_is_said_as_far_as_it_is_known(monkeypatch, said, wanted):
    monkeypatch.setattr(Board, "write", lambda *_, **__: None)
    monkeypatch.setattr(Board, "read", lambda *_: said)
    assert explain(Board("it", 4, 0), RuntimeError("Connection closed"), "checks", 1, 2.0).ranks == wanted


def test_what_is_no_statistics_is_refused(alone):
    with pytest.raises(TypeError, match="shares: float, but Stats or RankStats are wanted"):
        rd.merge({"a": 1.0})
