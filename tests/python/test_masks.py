"""attn_implementation="rootdk" reads a mask of booleans as the numbers it came from: padding, packing, windows."""

from __future__ import annotations

import numpy as np
import pytest
import rootdk
import torch

transformers = pytest.importorskip("transformers")

import models  # noqa: E402
from rootdk import _recognise  # noqa: E402
from rootdk._description import Description  # noqa: E402
from rootdk._recognise import recognised  # noqa: E402

with rootdk.watch():  # which makes "rootdk" known
    pass


def drawn(seed):
    """[batch, 1, len_q, len_kv] of a random problem, written out by hand; and whether it must be recognised."""
    rng = np.random.default_rng(seed)
    batch, len_q = int(rng.integers(1, 4)), int(rng.integers(1, 24))
    packed = bool(rng.integers(2))
    len_kv = len_q if packed else len_q + int(rng.integers(0, 12))
    offset = 0 if packed else len_kv - len_q
    i, j = np.arange(len_q)[:, None] + offset, np.arange(len_kv)
    seen = np.ones((batch, len_q, len_kv), bool)
    causal = rng.integers(3) > 0
    if causal:
        seen &= j <= i
        if rng.integers(2):
            seen &= j > i - int(rng.integers(1, len_kv + 1))
    elif rng.integers(2):
        seen &= abs(i - j) <= int(rng.integers(1, 6))
    for b in range(batch):
        if packed:
            document = np.cumsum(rng.random(len_q) < 0.2)
            seen[b] &= document[:, None] == document
        padding = rng.integers(3) if causal or not packed else 0
        cut = int(rng.integers(0, len_kv))
        if padding == 1:
            seen[b] &= j >= cut
        if padding == 2:
            seen[b] &= j < len_kv - cut
    return torch.tensor(seen)[:, None]


def shown(structure, mask):
    """What the engine sees with these numbers: each value is a key of its own."""
    batch, _, len_q, len_kv = mask.shape
    q, k = torch.zeros(batch, 1, len_q, 4), torch.zeros(batch, 1, len_kv, 4)
    v = torch.eye(len_kv).expand(batch, 1, -1, -1)
    return torch.ops.rootdk.attention(q, k, v, numbers=Description(structure).packed()[0])[0] > 0


@pytest.mark.parametrize("start", range(0, 400, 50))
def test_masks_of_numbers_are_those_numbers(start):
    for seed in range(start, start + 50):
        mask = drawn(seed)
        found = recognised(mask)
        assert found is not None, seed
        assert torch.equal(shown(found, mask), mask), seed


def test_what_is_none_of_these_stays_a_mask():
    """Any boolean mask comes back as itself, or not at all: a key that is hidden or shown changes it. No numbers say
    that a row sees two pieces of keys; of a mask of one row each piece is a start and a length."""
    rng = np.random.default_rng(0)
    kept, in_pieces = 0, 0
    for seed in range(150):
        mask = drawn(seed)
        place = tuple(int(rng.integers(n)) for n in mask.shape)
        mask[place] = ~mask[place]
        found = recognised(mask)
        begins = torch.nn.functional.pad(mask.int(), (1, 0)).diff() == 1
        if begins.sum(-1).max() > 1:
            in_pieces += 1
            assert found is None, seed
        elif mask.shape[2] == 1:
            kept += 1
            assert found is not None, seed
        if found is not None:
            assert torch.equal(shown(found, mask), mask), seed
    assert kept and in_pieces
    assert recognised(torch.rand(2, 1, 9, 9) < 0.5) is None
    assert recognised(torch.ones(2, 3, 9, 9, dtype=torch.bool)) is None  # one for each head
    assert recognised(torch.zeros(2, 1, 9, 9)) is None  # not of booleans


def test_a_mask_is_looked_at_once_and_again_when_written_to(monkeypatch):
    looks = []
    inner = _recognise._looked_at
    monkeypatch.setattr(_recognise, "_looked_at", lambda mask: looks.append(1) or inner(mask))
    before = len(_recognise._known)
    mask = torch.ones(2, 1, 6, 6, dtype=torch.bool).tril()
    for _ in range(4):
        recognised(mask)
        recognised(mask[..., :5])
    assert len(looks) == 2
    mask[1, 0, :, :2] = False
    assert recognised(mask).key_starts == (0, 2) and len(looks) == 3
    del mask
    assert len(_recognise._known) == before
    with torch.inference_mode():  # whose writes nobody counts
        mask = torch.ones(1, 1, 4, 4, dtype=torch.bool).tril()
        assert recognised(mask).causal
        mask[:] = True
        assert not recognised(mask).causal


@pytest.fixture
def masks(monkeypatch):
    """Masks that reach the engine, one entry for each call of attention."""
    given = []
    inner = rootdk.torch.call

    def call(q, k, v, scale, mask, *rest):
        given.append(mask)
        return inner(q, k, v, scale, mask, *rest)

    monkeypatch.setattr(rootdk.torch, "call", call)
    return given


def padded(side):
    mask = torch.ones(2, 17, dtype=torch.long)
    mask[1, :5] = 0
    return mask if side == "left" else mask.flip(1)


@pytest.mark.parametrize("name", ["llama", "mistral", "gemma2", "gpt_oss"])
def test_no_mask_is_made_of_padding_windows_and_packing(name, masks, monkeypatch):
    looks = []
    inner = _recognise._looked_at
    monkeypatch.setattr(_recognise, "_looked_at", lambda mask: looks.append(1) or inner(mask))
    eager, ours = models.build(name), models.build(name, "rootdk")
    ids = eager.inputs["input_ids"]
    places = torch.cat([torch.arange(6), torch.arange(ids.shape[1] - 6)])
    for given in (
        dict(attention_mask=padded("left")[:, -ids.shape[1] :]),
        dict(attention_mask=padded("right")[:, : ids.shape[1]]),
        dict(position_ids=places.expand(len(ids), -1), use_cache=False),
        dict(use_cache=False),
    ):
        there = given.get("attention_mask", torch.ones(ids.shape))[..., None]
        with torch.no_grad():
            wanted = eager.model(ids, **given).logits * there
            masks.clear(), looks.clear()
            found = ours.model(ids, **given).logits * there
        limit = models.rounding(ours.model.config, ids.shape[1]) * wanted.abs().max()
        assert (found - wanted).abs().max() <= limit, given
        layers = ours.model.config.num_hidden_layers
        assert len(masks) == layers and all(mask is None for mask in masks), given
        assert len(looks) <= len(set(getattr(ours.model.config, "layer_types", None) or [0]))


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("name", ["llama", "mistral"])
def test_generation_from_padded_prompts(name, cache, masks):
    eager, ours = models.build(name), models.build(name, "rootdk")
    ids = eager.inputs["input_ids"][:, :9]
    mask = padded("left")[:, : ids.shape[1]]
    told = [
        tiny.model.generate(
            ids,
            attention_mask=mask,
            max_new_tokens=8,
            do_sample=False,
            cache_implementation=cache,
            disable_compile=True,
        )
        for tiny in (eager, ours)
    ]
    assert torch.equal(*told)
    assert masks and all(mask is None for mask in masks)


def test_sequences_said_beside_the_tensors():
    """cu_seq_lens, as collators without padding give them, and no mask. What a key too many or too few changes is of
    the size of the values; torch's own limits for float32 are far below that."""
    q, k, v = (torch.randn(1, 4, 12, 8) for _ in range(3))
    attend = transformers.AttentionInterface()["rootdk"]
    starts = torch.tensor([0, 5, 12], dtype=torch.int32)
    for window in (None, 3):
        more = dict(cu_seq_lens_q=starts, cu_seq_lens_k=starts, sliding_window=window)
        out = attend(torch.nn.Module(), q, k, v, None, **more)[0]
        for a, b in ((0, 5), (5, 12)):
            i = torch.arange(b - a)
            mask = (i[:, None] >= i) & (i[:, None] < i + (window or 12))
            part = torch.nn.functional.scaled_dot_product_attention(*(x[:, :, a:b] for x in (q, k, v)), attn_mask=mask)
            torch.testing.assert_close(out[:, a:b], part.transpose(1, 2))
    one = attend(torch.nn.Module(), q[:, :, -1:], k, v, None, sliding_window=3)[0]
    torch.testing.assert_close(one, attend(torch.nn.Module(), q, k, v, None, sliding_window=3)[0][:, -1:])


def test_statistics_are_those_of_the_mask():
    tiny = models.build("llama", "rootdk")
    ids = tiny.inputs["input_ids"]
    mask = padded("left")[:, : ids.shape[1]]
    found = []
    for keep in (True, False):
        with pytest.MonkeyPatch.context() as patch, rootdk.watch(tiny.model) as w, torch.no_grad():
            if not keep:
                patch.setattr("rootdk._watch.transformers.recognised", lambda mask: None)
            tiny.model(ids, attention_mask=mask)
        found.append(w.to_pandas())
    limit = models.rounding(tiny.model.config, ids.shape[1])  # the second layer's inputs are the first one's output
    for name in ("raw_max", "entropy", "rows_counted", "rows_masked"):
        if name in found[0]:
            np.testing.assert_allclose(found[0][name], found[1][name], rtol=limit)
