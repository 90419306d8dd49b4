"""Layouts, who sees whom and the plan, as plain numbers: no ranks are started."""

from __future__ import annotations

import random
import subprocess
import sys

import numpy as np
import pytest
from rootdk._structure import Structure

pytest.importorskip("torch")
from rootdk.distributed import Layout, Machine, Sight, Sizes, plan
from rootdk.distributed._call import Call, segments
from rootdk.distributed._plan import head_range, hops, key_head_range, needs


def starts(rng, total):
    return (0, *sorted(rng.randint(0, total) for _ in range(rng.randint(0, 4))), total)


def drawn(seed):
    """A layout and a structure, and which key each query sees, by the definition."""
    rng = random.Random(seed)
    ranks, total = rng.choice([1, 2, 3, 5, 8]), rng.randint(0, 50)
    packed = starts(rng, total)
    layout = rng.choice([Layout.even(total, ranks), Layout.zigzag(total, ranks), Layout.dealt(packed, ranks)])
    window = rng.choice([None, (rng.randint(0, 20), None), (None, 3), (rng.randint(0, 9), rng.randint(0, 9))])
    own = packed if rng.random() < 0.6 else None
    structure = Structure(
        causal=rng.random() < 0.6,
        diagonal=rng.choice(["bottom_right", "top_left", "at"]),
        offset=rng.randint(-9, 9),
        window=window,
        q_starts=own,
        kv_starts=own,
    )
    seen = np.zeros((total, total), int)
    left, right = window or (None, None)
    for first, end in zip(own or (0, total), (own or (0, total))[1:]):
        for i in range(first, end):
            at = i + (structure.offset if structure.diagonal == "at" else 0)
            for j in range(first, end):
                hidden = (structure.causal and j > at) or (left is not None and j < at - left)
                seen[i, j] = not (hidden or (right is not None and j > at + right))
    return layout, structure, seen


@pytest.mark.parametrize("seed", range(200))
def test_tiles_are_every_visible_pair_once_and_pairs_counts_them(seed):
    layout, structure, seen = drawn(seed)
    sight = Sight.of(structure, layout.total, layout.total)
    counted = sight.pairs(layout, layout)
    found = np.zeros_like(seen)
    for r in range(layout.ranks):
        for c in range(layout.ranks):
            rows, keys = layout.positions(r), layout.positions(c)
            assert counted[r, c] == seen[np.ix_(rows, keys)].sum()
            for tile in sight.tiles(layout.pieces[r], layout.pieces[c]):
                assert tile.first_key == keys[tile.k0] and tile.first_query == rows[tile.q0]
                corners = ((0, 0), *tile.documents, (tile.q1 - tile.q0, tile.k1 - tile.k0))
                for (q0, k0), (q1, k1) in zip(corners, corners[1:]):
                    for i in range(q0, q1):
                        at = k0 + i - q0 + tile.offset
                        for j in range(k0, k1):
                            hidden = (sight.right is not None and j > at + sight.right) or (
                                sight.left is not None and j < at - sight.left
                            )
                            found[rows[tile.q0 + i], keys[tile.k0 + j]] += not hidden
    assert (found == seen).all()


@pytest.mark.parametrize("seed", range(50))
def test_padding_is_asked_for_where_it_lies(seed, monkeypatch):
    """The engine's rule, for the rows that a rank holds and no others: [length, 4] numbers of a whole sequence are more
    than a rank's part of q."""
    layout, structure, _ = drawn(seed)
    rng = random.Random(seed)
    lengths = tuple(rng.randint(0, layout.total) for _ in range(2))
    structure = structure.each({"query_lengths": lengths, "key_starts": tuple(n // 2 for n in lengths)})
    whole = structure.visible(layout.total, layout.total).is_query
    asked, visible = [], Structure.visible
    monkeypatch.setattr(Structure, "visible", lambda s, q, k: (asked.append(s.batch() * q), visible(s, q, k))[1])
    for rank, here in enumerate(layout.lengths):
        asked.clear()
        for item in range(2):
            found = Call(layout, layout, structure).padding(rank, item)
            assert (found == (whole[item][layout.positions(rank)] == 0)).all() and len(found) == here
        assert sum(asked) == 2 * here


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("total", [0, 1, 7, 64, 1001])
def test_zigzag_shares_causal_work_out_evenly(ranks, total):
    layout = Layout.zigzag(total, ranks)
    work = Sight.all(total, total, causal=True).pairs(layout, layout).sum(1)
    # A cut is off by less than a token, and a token sees no more than all of them: of four cuts two add up.
    assert work.max() - work.min() <= 2 * total
    assert max(layout.lengths) - min(layout.lengths) <= 2


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("ranks", [2, 4, 7, 64])
def test_documents_are_dealt_evenly(ranks, causal):
    rng = random.Random(ranks)
    lengths = [rng.choice([137, 2041, 89, 5000, 300, 1, 0]) for _ in range(300)]
    packed = tuple(np.cumsum([0, *lengths]).tolist())
    layout = Layout.dealt(packed, ranks, causal=causal)
    structure = Structure(causal=causal, q_starts=packed, kv_starts=packed)
    work = Sight.of(structure, layout.total, layout.total).pairs(layout, layout).sum(1)
    assert layout.total == sum(lengths)
    cuts = 2 * max(lengths) * sum(1 for n in lengths if n)  # each cut of a document is off by less than a token
    assert work.max() <= work.mean() * (1 + 1 / 16) + cuts / ranks
    assert work.max() <= 1.07 * work.mean()


def test_layouts_that_are_none_are_refused():
    for pieces, words in (
        ((((0, 4),), ((3, 6),)), "token 3 is on two ranks"),
        ((((0, 4),), ((5, 6),)), "token 4 is on none"),
        ((((4, 6), (0, 4)),), "the pieces of rank 0 are"),
    ):
        with pytest.raises(ValueError, match=words):
            Layout(pieces)


@pytest.mark.parametrize("heads, heads_kv", [(1, 1), (4, 2), (6, 2), (5, 1), (8, 8), (12, 3)])
@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
def test_heads_of_all_ranks_are_all_heads_and_read_their_own_keys(heads, heads_kv, ranks):
    group, all_heads = heads // heads_kv, []
    for rank in range(ranks):
        first, last = head_range(heads, ranks, rank)
        low, high = key_head_range(heads, heads_kv, ranks, rank)
        for part in segments(first, last, group):
            count, keys = part.q.stop - part.q.start, part.kv.stop - part.kv.start
            assert count % keys == 0
            for h in range(count):
                all_heads.append(first + part.q.start + h)
                assert low + part.kv.start + h // (count // keys) == all_heads[-1] // group < high
    assert all_heads == list(range(heads))


def test_keys_travel_no_further_than_they_are_seen():
    layout = Layout.even(800, 8)
    causal = needs(Sight.all(800, 800, causal=True).pairs(layout, layout))
    assert hops(causal) == (7, 6, 5, 4, 3, 2, 1, 0)
    window = needs(Sight.of(Structure(causal=True, window=(100, 0)), 800, 800).pairs(layout, layout))
    assert hops(window) == (1,) * 7 + (0,)
    assert hops(needs(Sight.all(800, 800).pairs(layout, layout))) == (7,) * 8


def test_the_plan_takes_what_is_cheapest_and_fits():
    sizes, layout = Sizes(1, 32, 8, 128, 128, 2), Layout.zigzag(262144, 16)
    sight = Sight.all(layout.total, layout.total, causal=True)
    slow = Machine(link=1e9, link_between=1e9)
    assert plan(sizes, layout, sight=sight, machine=slow).way in ("heads", "two_levels")
    free = plan(sizes, layout, sight=sight, machine=Machine(link=1e15, link_between=1e15, latency=0, latency_between=0))
    assert free.costs["ring"].efficiency == pytest.approx(1, abs=1e-3)
    least = min((cost for cost in free.costs.values() if not cost.refused), key=lambda cost: cost.memory)
    for memory, words in ((least.memory, "fastest that fits"), (least.memory - 1, "none fits")):
        tight = plan(sizes, layout, sight=sight, machine=Machine(link_between=1e9, memory=memory))
        assert tight.way == least.way and words in tight.why
    assert str(free).count("\n") == 5 and free.way in str(free)
    uneven = Layout.even(262144, 16)
    assert plan(sizes, uneven, sight=sight).costs["ring"].efficiency < 0.6, "contiguous causal runs are not balanced"


def test_what_is_computed_wide_has_a_rate_of_its_own():
    """16-bit inputs whose parts are float32: by ring and two levels, and backward where other ranks add to it."""
    layout = Layout.zigzag(65536, 16)
    even, wide = Machine(latency=0, latency_between=0), Machine(latency=0, latency_between=0, flops_wide=50e12)

    def costs(machine, **sizes):
        return plan(Sizes(1, 32, 8, 128, 128, **sizes), layout, machine=machine).costs

    for same in (dict(element=4), dict(element=2, wide_parts=False)):
        assert costs(wide, **same) == costs(even, **same)
    fast, slow = costs(even), costs(wide)
    for way, forward, backward in (("ring", 10, 10), ("two_levels", 10, 10), ("all_gather", 1, 10), ("heads", 1, 1)):
        for name, times in (("forward", forward), ("backward", backward)):
            a, b = (getattr(found[way], f"seconds_{name}") for found in (fast, slow))
            flops = max(getattr(fast[way], f"flops_{name}")) / 500e12
            # What is not hidden behind the kernels is the same; where more is hidden, it is less.
            assert (times - 1) * flops * (1 - 1e-9) - (a - flops) <= b - a <= (times - 1) * flops * (1 + 1e-9)


def test_importing_rootdk_imports_neither_torch_nor_this():
    code = "import sys, rootdk; sys.exit('torch' in sys.modules or 'rootdk.distributed' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
