"""Which axes are heads and which the batch, however a model lays them out: every way must give the same statistics as
the usual one, or be named; and the largest score is that of all rows, also where others are sampled."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
import rootdk
import torch
import torch.nn.functional as F

B, T, H, D = 3, 7, 2, 8


class Projected(torch.nn.Module):
    """Queries, keys and values, and what is done with them. Head 0 is loud."""

    def __init__(self, attend, heads=H, says=True):
        super().__init__()
        width = heads * D
        self.q_proj, self.k_proj, self.v_proj = (torch.nn.Linear(width, width) for _ in range(3))
        self.attend = attend
        if says:
            self.num_heads = heads
        with torch.no_grad():
            self.q_proj.weight[:D] *= 8

    def forward(self, x):
        return self.attend(self.q_proj(x), self.k_proj(x), self.v_proj(x))


def largest(model, x, heads=H, causal=False):
    """Of each head."""
    with torch.no_grad():
        q, k = (p(x).unflatten(-1, (heads, D)).transpose(1, 2) for p in (model.q_proj, model.k_proj))
        s = q @ k.mT / math.sqrt(D)
        s = s.masked_fill(torch.ones_like(s, dtype=torch.bool).triu(1), -math.inf) if causal else s
        return s.amax((0, 2, 3)).numpy()


# Sampled rows ---------------------------------------------------------------------------------------------------------
def usual(x):
    return x.unflatten(-1, (H, D)).transpose(1, 2)


MASK = torch.zeros(600, 600).masked_fill(torch.ones(600, 600, dtype=torch.bool).triu(1), -math.inf)
SAMPLED = {
    "dropout": (dict(dropout_p=0.1), {}),
    "dropout, causal": (dict(dropout_p=0.1, is_causal=True), {}),
    "dropout, mask": (dict(dropout_p=0.1, attn_mask=MASK > -1), {}),
    "dropout, bias": (dict(dropout_p=0.1, attn_mask=MASK), {}),
    "beside": ({}, dict(beside=True)),
}


@pytest.mark.parametrize("how", SAMPLED)
def test_the_largest_score_is_of_all_rows(how):
    """One row in 600 is loud, and not among those sampled."""
    arguments, options = SAMPLED[how]
    torch.manual_seed(0)
    model = Projected(lambda q, k, v: F.scaled_dot_product_attention(*map(usual, (q, k, v)), **arguments))
    x = torch.randn(2, 600, H * D)
    x[:, 301] *= 40
    causal = "attn_mask" in arguments or "is_causal" in arguments
    expected = largest(model, x, causal=causal)
    events = []
    alarm = rootdk.Alarm(max_score=0.9 * float(expected.max()), call=events.append)
    with rootdk.watch(model, on=alarm, **options) as w:
        model(x)
        np.testing.assert_allclose(w.stats("(root)").raw_max[0], expected, rtol=1e-5)
        np.testing.assert_allclose(w.stats("(root)").score_max[0], expected, rtol=1e-5)
        assert [(event.what, event.head) for event in events] == [("raw_max", int(expected.argmax()))]
        factors = w.qk_clip(tau=20.0)["(root)"]
        np.testing.assert_allclose(factors, np.minimum(1, 20 / expected), rtol=1e-4)
        np.testing.assert_allclose(largest(model, x, causal=causal), np.minimum(20, expected), rtol=1e-4)


def test_the_largest_score_is_of_all_rows_with_several_heads_to_a_key_and_steps():
    """In blocks of a few rows, with any number of rows left over."""
    from rootdk._watch import rows

    torch.manual_seed(0)
    for len_q, most in ((65, 64), (127, 64), (130, 64), (600, 7)):
        q, k = torch.randn(2, 4, len_q, D), torch.randn(2, 2, len_q, D)
        s = (q @ k.repeat_interleave(2, 1).mT) * D**-0.5
        for step in range(4):
            for causal in (False, True):
                stats = rows.sampled(q, k, None, causal, None, most, 17 * step).over_batch()
                hidden = s.masked_fill(torch.ones(len_q, len_q, dtype=torch.bool).triu(1), -math.inf) if causal else s
                np.testing.assert_allclose(stats.raw_max[0], hidden.amax((0, 2, 3)), rtol=1e-5)
                assert most // 2 * 2 <= stats.row_count[0, 0] <= 2 * most


def test_a_row_that_is_not_finite_is_found_among_those_that_are_not_sampled():
    from rootdk._watch import rows

    q, k = torch.randn(1, 2, 600, D), torch.randn(1, 2, 600, D)
    q[0, 1, 301] = math.nan
    stats = rows.sampled(q, k, None, False, None, 64, 0)
    assert (stats.rows_not_finite[0] > 0).tolist() == [False, True]
