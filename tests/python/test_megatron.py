"""Core attention as Megatron-LM and TransformerEngine want it, against attention written out in double."""

from __future__ import annotations

import inspect
import types

import numpy as np
import pytest
import torch
from conftest import plain, tolerance
from rootdk import megatron


def config(**more):
    """As much of Megatron's TransformerConfig as is read."""
    sizes = dict(num_attention_heads=4, attention_dropout=0.0, context_parallel_size=1, window_size=None)
    return types.SimpleNamespace(**sizes | dict(window_attn_skip_freq=None, softmax_type="vanilla") | more)


def draw(seed, len_q, len_kv, heads_kv=2):
    g = torch.Generator().manual_seed(seed)
    sizes = ((len_q, 4), (len_kv, heads_kv), (len_kv, heads_kv))
    return [torch.randn(length, 3, heads, 16, generator=g, requires_grad=True) for length, heads in sizes]


def exact(q, k, v, visible, **more):
    """(output as Megatron lays it out, largest logit of each head)."""
    arrays = [x.detach().numpy().transpose(1, 2, 0, 3) for x in (q, k, v)]
    out, scores, _ = plain(*arrays, visible=visible, **more)
    return out.transpose(2, 0, 1, 3).reshape(len(q), q.shape[1], -1), scores.max((0, 2, 3))


def logit_error(q, k, scale):
    """A score is a sum of 16 products: off by a unit for each of five levels, of what the products can be."""
    return 5 * 2.0**-24 * (1 + 16 * float(q.detach().abs().max() * k.detach().abs().max()) * scale)


def holds(out, largest, q, k, v, visible, **more):
    wanted, maxima = exact(q, k, v, visible, **more)
    limit = tolerance(*(x.detach().numpy() for x in (q, k, v)), more.get("scale"))
    assert out.shape == wanted.shape and np.abs(out.detach().numpy() - wanted).max() <= limit
    assert largest.shape == (4,) and largest.dtype == torch.float32 and not largest.requires_grad
    assert np.abs(largest.numpy() - maxima).max() <= logit_error(q, k, more.get("scale") or 0.25)


ROWS_OF_11 = np.arange(11)[:, None]
ROWS, KEYS = np.arange(9)[:, None], np.arange(9)
PADDED = torch.zeros(3, 1, 1, 9, dtype=torch.bool)
PADDED[1, ..., 6:] = True
SHOWN = ~(PADDED | PADDED.mT).numpy()
ANY = torch.rand(3, 1, 9, 9, generator=torch.Generator().manual_seed(1)) < 0.3
KINDS = {
    "no_mask": (None, None),
    "causal": (ANY, ROWS >= KEYS),  # whose mask is not looked at, as there
    "causal_bottom_right": (None, ROWS >= KEYS),
    "padding": (PADDED, SHOWN),
    "padding_causal": (PADDED, SHOWN & (ROWS >= KEYS)),
    "arbitrary": (ANY, ~ANY.numpy()),
}


@pytest.mark.parametrize("kind", KINDS)
def test_masks(kind):
    mask, visible = KINDS[kind]
    q, k, v = draw(0, 9, 9)
    core = megatron.DotProductAttention(config(), 1, types.SimpleNamespace(name=kind), "self")
    out = core(q, k, v, mask)
    holds(out, core.current_max_attn_logits, q, k, v, visible)
    te = megatron.TEDotProductAttention(4, 16, 2, attn_mask_type=kind, return_max_logit=True)
    found, largest = te(q, k, v, mask)
    assert torch.equal(found, out) and torch.equal(largest, core.current_max_attn_logits)
    te = megatron.TEDotProductAttention(4, 16, 2, qkv_format="bshd", attn_mask_type=kind)
    assert torch.equal(te(*(x.transpose(0, 1) for x in (q, k, v)), mask).transpose(0, 1), out)


def test_more_keys_than_queries_and_a_bias():
    q, k, v = draw(1, 4, 9)
    bias = torch.randn(1, 4, 4, 9)
    for kind, shift in (("causal", 0), ("causal_bottom_right", 5)):
        visible = np.arange(4)[:, None] + shift >= KEYS
        te = megatron.TEDotProductAttention(4, 16, 2, attn_mask_type=kind, return_max_logit=True)
        out, largest = te(q, k, v, core_attention_bias=bias)
        holds(out, largest, q, k, v, visible, bias=bias.numpy())
        plain = megatron.TEDotProductAttention(4, 16, 2, attn_mask_type="causal", bottom_right_diagonal=shift > 0)
        assert torch.equal(plain(q, k, v, core_attention_bias=bias), out)
        other = plain(q, k, v, core_attention_bias=bias, bottom_right_diagonal=shift == 0)
        assert not torch.equal(other, out)


@pytest.mark.parametrize("kind", ["padding", "padding_causal", "padding_causal_bottom_right"])
def test_padding_said_by_lengths(kind):
    """As TransformerEngine takes it without a mask; a diagonal at the bottom right is that of each sequence."""
    q, k, v = draw(6, 9, 9)
    lengths_q, lengths_kv = np.array([9, 6, 4]), np.array([9, 5, 7])
    ends = [torch.tensor([0, *np.cumsum(x)], dtype=torch.int32) for x in (lengths_q, lengths_kv)]
    lengths_q, lengths_kv = lengths_q[:, None, None], lengths_kv[:, None, None]
    place = ROWS + (0 if kind == "padding_causal" else lengths_kv - lengths_q)
    for window in (None, (2, 0), (3, 1)):
        left, right = window or (99, 99)
        visible = (ROWS < lengths_q) & (KEYS < lengths_kv) & (KEYS >= place - left)
        visible &= KEYS <= place + (0 if "causal" in kind else right)
        te = megatron.TEDotProductAttention(4, 16, 2, attn_mask_type=kind, window_size=window, return_max_logit=True)
        out, largest = te(q, k, v, cu_seqlens_q=ends[0], cu_seqlens_kv=ends[1], max_seqlen_q=9, max_seqlen_kv=9)
        holds(out, largest, q, k, v, visible[:, None])
        turned = (x.transpose(0, 1) for x in (q, k, v))
        again, _ = te(*turned, qkv_format="bshd", cu_seqlens_q=ends[0], cu_seqlens_kv=ends[1])
        assert torch.equal(again.transpose(0, 1), out)


def test_a_bias_before_the_scale_and_one_after_it():
    q, k, v = draw(7, 9, 9)
    bias = torch.randn(1, 4, 9, 9)
    te = megatron.TEDotProductAttention(4, 16, 2, attn_mask_type="no_mask", softmax_scale=0.3, return_max_logit=True)
    for kind, factor in (("pre_scale_bias", 0.3), ("post_scale_bias", 1.0)):
        out, largest = te(q, k, v, core_attention_bias_type=kind, core_attention_bias=bias)
        holds(out, largest, q, k, v, None, bias=bias.numpy() * factor, scale=0.3)
    of_its_own = megatron.TEDotProductAttention(4, 16, 2, attn_mask_type="no_mask")  # 1/√16
    before = of_its_own(q, k, v, core_attention_bias_type="pre_scale_bias", core_attention_bias=4 * bias)
    assert torch.equal(before, of_its_own(q, k, v, core_attention_bias=bias))
    core = megatron.DotProductAttention(config(), 1, "no_mask", softmax_scale=0.3)
    assert torch.equal(core(q, k, v, None, attention_bias=bias), out)
    assert torch.equal(core.current_max_attn_logits, largest)


def test_maxima_gather_until_they_are_taken():
    """Below zero, too: nothing begins at 0."""
    core = megatron.DotProductAttention(config(), 1, "causal", softmax_scale=0.3)
    assert core.current_max_attn_logits is None
    batches = [draw(seed, 9, 9) for seed in range(3)]
    for q, _, _ in batches:
        q.data.mul_(-1).abs_().neg_()
    batches = [(q, k.detach().abs().requires_grad_(), v) for q, k, v in batches]
    maxima = []
    for q, k, v in batches:
        core(q, k, v, None).sum().backward()
        maxima.append(exact(q, k, v, ROWS >= KEYS, scale=0.3)[1])
        assert q.grad is not None
    assert (core.current_max_attn_logits < 0).all() and not core.current_max_attn_logits.requires_grad
    limit = max(logit_error(q, k, 0.3) for q, k, _ in batches)
    assert np.abs(core.current_max_attn_logits.numpy() - np.max(maxima, 0)).max() <= limit
    core.current_max_attn_logits = None  # as clip_qk does
    core(*batches[0], None)
    assert np.abs(core.current_max_attn_logits.numpy() - maxima[0]).max() <= limit


def test_where_nothing_is_seen_and_where_there_is_a_nan():
    for length, batch in ((0, 3), (9, 0)):
        core = megatron.DotProductAttention(config(), 1, "causal")
        empty = [torch.zeros(length, batch, 4, 16) for _ in range(3)]
        assert core(*empty, None).shape == (length, batch, 64)
        assert core.current_max_attn_logits.tolist() == [-np.inf] * 4
    q, k, v = draw(8, 9, 9)
    core = megatron.DotProductAttention(config(), 1, "causal")
    q.data[0, 0, 1] = torch.nan
    for x in (q, q.detach().nan_to_num()):  # it stays until it is taken
        core(x, k, v, None)
        assert core.current_max_attn_logits.isnan().tolist() == [False, True, False, False]


def test_packed_sequences():
    g = torch.Generator().manual_seed(2)
    q, k, v = torch.randn(11, 4, 16, generator=g), *torch.randn(2, 11, 2, 16, generator=g)
    ends = torch.tensor([0, 4, 11], dtype=torch.int32)
    params = types.SimpleNamespace(qkv_format="thd", cu_seqlens_q=ends, cu_seqlens_kv=ends)
    core = megatron.DotProductAttention(config(), 1, "padding_causal")
    out = core(q, k, v, None, packed_seq_params=params)
    each = megatron.DotProductAttention(config(), 1, "causal")
    for a, b in ((0, 4), (4, 11)):
        alone = each(*(x[a:b, None] for x in (q, k, v)), None)[:, 0]
        torch.testing.assert_close(out[a:b], alone)
    torch.testing.assert_close(core.current_max_attn_logits, each.current_max_attn_logits)
    te = megatron.TEDotProductAttention(4, 16, 2, qkv_format="thd", attn_mask_type="padding_causal")
    assert torch.equal(te(q, k, v, cu_seqlens_q=ends, cu_seqlens_kv=ends), out)
    fewer = torch.tensor([0, 2, 11], dtype=torch.int32)  # queries of two sequences, over other tokens than theirs
    te = megatron.TEDotProductAttention(4, 16, 2, qkv_format="thd", attn_mask_type="padding", return_max_logit=True)
    crossed, largest = te(q, k, v, cu_seqlens_q=fewer, cu_seqlens_kv=ends)
    visible = (ROWS_OF_11 >= 2) == (np.arange(11) >= 4)
    turned = [x[:, None] for x in (q, k, v)]
    wanted, maxima = exact(*turned, visible)
    assert np.abs(crossed.numpy() - wanted[:, 0]).max() <= tolerance(*(x.numpy() for x in (q, k, v)))
    assert np.abs(largest.numpy() - maxima).max() <= logit_error(q, k, 0.25)
    te = megatron.TEDotProductAttention(4, 16, 2, qkv_format="thd", attn_mask_type="padding_causal")
    other = torch.tensor([0, 5, 11], dtype=torch.int32)
    with pytest.raises(NotImplementedError, match="^attn_mask_type"):
        te(q, k, v, cu_seqlens_q=ends, cu_seqlens_kv=other)


def test_windows_by_layer_and_a_softmax_that_is_off_by_one():
    q, k, v = draw(3, 9, 9)
    said = config(window_size=(2, 0), window_attn_skip_freq=2, softmax_type="off-by-one")
    for layer, visible in ((1, (ROWS >= KEYS) & (ROWS - KEYS <= 2)), (2, ROWS >= KEYS)):
        core = megatron.DotProductAttention(said, layer, "causal")
        holds(core(q, k, v, None), core.current_max_attn_logits, q, k, v, visible, sink=0.0)
    groups = types.SimpleNamespace(tp=types.SimpleNamespace(size=lambda: 2))
    learnable = dict(softmax_type="learnable")
    learns = megatron.TEDotProductAttention(4, 16, 2, softmax_type="learnable", attn_mask_type="no_mask")
    learns(q, k, v).sum().backward()
    assert [name for name, _ in learns.named_parameters()] == ["softmax_offset"]
    assert learns.softmax_offset.grad.abs().min() > 0
    for part in (
        megatron.TEDotProductAttention(8, 16, 4, softmax_type="learnable", tp_size=2),
        megatron.DotProductAttention(
            config(num_attention_heads=8, tensor_model_parallel_size=2, **learnable), 1, "causal"
        ),
        megatron.DotProductAttention(config(num_attention_heads=8, **learnable), 1, "causal", pg_collection=groups),
    ):
        assert part.softmax_offset.shape == (4,)
    every = config(window_size=(2, 0), window_attn_skip_freq=[1, 0, 0])  # a list says which layers have it
    for layer, visible in ((1, (ROWS >= KEYS) & (ROWS - KEYS <= 2)), (3, ROWS >= KEYS)):
        core = megatron.DotProductAttention(every, layer, "causal")
        holds(core(q, k, v, None), core.current_max_attn_logits, q, k, v, visible)


# The arguments that TransformerEngine's has, in their order.
OF_INIT = "num_attention_heads kv_channels num_gqa_groups attention_dropout qkv_format attn_mask_type window_size "
OF_INIT += "bottom_right_diagonal sequence_parallel tp_size get_rng_state_tracker tp_group layer_number attention_type "
OF_INIT += "cp_group cp_global_ranks cp_stream cp_comm_type softmax_scale softmax_type return_max_logit name"
OF_CALL = "query_layer key_layer value_layer attention_mask qkv_format cu_seqlens_q cu_seqlens_kv cu_seqlens_q_padded "
OF_CALL += "cu_seqlens_kv_padded max_seqlen_q max_seqlen_kv attn_mask_type window_size bottom_right_diagonal "
OF_CALL += "checkpoint_core_attention core_attention_bias_type core_attention_bias alibi_slopes fast_zero_fill "
OF_CALL += "inference_params pad_between_seqs fp8_output bf16_backward num_splits"


def test_the_arguments_are_transformer_engines():
    te = megatron.TEDotProductAttention
    assert list(inspect.signature(te).parameters) == OF_INIT.split()
    assert list(inspect.signature(te.forward).parameters)[1:-1] == OF_CALL.split()


def test_a_call_says_otherwise_than_its_module():
    q, k, v = draw(9, 9, 9)
    for said, masks in ((dict(attn_mask_type="no_mask"), None), (dict(window_size=(2, 0)), (ROWS - KEYS <= 2))):
        te = megatron.TEDotProductAttention(4, 16, 2, window_size=(5, 0), return_max_logit=True)
        visible = None if masks is None else masks & (ROWS >= KEYS)
        holds(*te(q, k, v, **dict(window_size=(-1, -1)) | said), q, k, v, visible)
    core = megatron.DotProductAttention(config(), 1, "causal")
    holds(core(q, k, v, None, attn_mask_type="no_mask"), core.current_max_attn_logits, q, k, v, None)
    te = megatron.TEDotProductAttention(4, 16, 2, softmax_type="off-by-one", return_max_logit=True)
    holds(*te(q, k, v), q, k, v, ROWS >= KEYS, sink=0.0)


def test_dropout_is_for_training():
    q, k, v = draw(4, 9, 9)
    core = megatron.DotProductAttention(config(attention_dropout=0.5), 1, "causal")
    assert not torch.equal(core(q, k, v, None), core(q, k, v, None))
    assert not megatron.DotProductAttention(config(attention_dropout=0.5), 1, "causal", attention_dropout=0.0).dropout
    core.eval()
    assert torch.equal(core(q, k, v, None), core(q, k, v, None))
    te = megatron.TEDotProductAttention(4, 16, 2, attention_dropout=0.5)
    assert not torch.equal(te(q, k, v), te(q, k, v))
    te.eval()
    assert torch.equal(te(q, k, v), te(q, k, v))


def test_all_layers_in_one_reduction(tmp_path, monkeypatch):
    layers = [megatron.DotProductAttention(config(), n, "causal") for n in (1, 2, 3)]
    for seed, layer in enumerate(layers[:2]):
        layer(*draw(seed, 9, 9), None)
    before = [layer.current_max_attn_logits.clone() for layer in layers[:2]]
    modules = [types.SimpleNamespace(core_attention=layer) for layer in layers]
    calls, inner = [], torch.distributed.all_reduce

    def reduce(x, op=None, group=None):
        calls.append((x.numel(), op, group))
        inner(x, op=op, group=group)
        x += 1  # as if another rank had more

    assert megatron.reduce_max_logits(modules) == float(torch.cat(before).max())
    assert megatron.reduce_max_logits(layers[2:]) == -np.inf
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        monkeypatch.setattr(torch.distributed, "all_reduce", reduce)
        of_some = torch.distributed.new_group([0])
        megatron.reduce_max_logits(modules, of_some)
    finally:
        torch.distributed.destroy_process_group()
    assert calls == [(8, torch.distributed.ReduceOp.MAX, of_some)] and layers[2].current_max_attn_logits is None
    assert all(torch.equal(layer.current_max_attn_logits, x + 1) for layer, x in zip(layers, before))


def test_what_is_not_right_is_named():
    q, k, v = draw(5, 9, 9)
    core = megatron.DotProductAttention(config(), 1, "padding")
    te, bias = megatron.TEDotProductAttention(4, 16, 2), torch.zeros(1, 4, 9, 9)
    ends = torch.tensor([0, 4, 11, 12])
    packed = types.SimpleNamespace(cu_seqlens_q=ends, cu_seqlens_kv=ends)
    for says, call in {
        "attn_mask_type: strange": lambda: megatron.DotProductAttention(config(), 1, "strange"),
        "config.context_parallel_size": lambda: megatron.DotProductAttention(
            config(context_parallel_size=2), 1, "causal"
        ),
        "num_splits": lambda: megatron.DotProductAttention(config(), 1, "causal", num_splits=2),
        "softmax_type": lambda: megatron.DotProductAttention(config(softmax_type="odd"), 1, "causal"),
        "attention_mask": lambda: core(q, k, v, torch.zeros(3, 9)),
        "qkv_format": lambda: megatron.TEDotProductAttention(4, 16, qkv_format="hbsd"),
        "qkv_format: odd": lambda: te(q, k, v, qkv_format="odd"),
        "attention_mask: None": lambda: te(q, k, v, attn_mask_type="padding"),
        "cu_seqlens_q: NoneType": lambda: te(q, k, v, qkv_format="thd"),
        "cu_seqlens_q: ": lambda: te(q, k, v, attn_mask_type="padding", cu_seqlens_q=ends[:3], cu_seqlens_kv=ends),
        "cu_seqlens_q_padded": lambda: te(q, k, v, qkv_format="thd", cu_seqlens_q=ends, cu_seqlens_q_padded=ends),
        "core_attention_bias_type: alibi": lambda: te(q, k, v, core_attention_bias_type="alibi"),
        "core_attention_bias_type: no_bias": lambda: te(
            q, k, v, core_attention_bias_type="no_bias", core_attention_bias=bias
        ),
        "core_attention_bias: ": lambda: te(q, k, v, qkv_format="thd", core_attention_bias=bias),
        "attention_bias": lambda: core(q, k, v, None, attention_bias=bias, packed_seq_params=packed),
        "alibi_slopes": lambda: te(q, k, v, alibi_slopes=torch.ones(4)),
        "score_mod": lambda: te(q, k, v, score_mod=abs),
        "cp_group": lambda: megatron.TEDotProductAttention(4, 16, cp_group=object()),
    }.items():
        with pytest.raises((ValueError, TypeError, NotImplementedError), match=f"^{says}"):
            call()
