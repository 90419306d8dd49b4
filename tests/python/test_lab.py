"""explain, rules and theory are those of the command; python -m rootdk is the command."""

from __future__ import annotations

import json
import math
import pathlib
import subprocess
import sys

import numpy as np
import pytest
import rootdk
from conftest import no_columns
from rootdk import theory

needs_command = pytest.mark.skipif(
    not (pathlib.Path(rootdk.__file__).parent / "bin" / "rootdk").exists(), reason="built without the command"
)


def command(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "rootdk", *arguments], capture_output=True, text=True, env=no_columns()
    )


@needs_command
def test_the_module_is_the_command():
    done = command("explain", "--scores", "14,10,12", "--dk", "64")
    assert done.returncode == 0 and done.stdout.strip() == str(rootdk.explain([14, 10, 12], dk=64)).strip()
    found = json.loads(command("explain", "--scores", "14,10,12", "--dk", "64", "--json").stdout)
    assert found["rules"] == rootdk.explain([14, 10, 12], dk=64).data["rules"]
    rules = json.loads(command("rules", "--json").stdout)["rules"]
    assert [rule["name"] for rule in rules] == [rule.name for rule in rootdk.rules()]
    assert command("nonsense").returncode == 2


def test_explain_from_vectors():
    found = rootdk.explain(q=[1, 0, 1, 0], keys=[[0, 1, 1, 1], [1, 1, 0, 0]], rules=["sqrt_dk"])
    assert found.rules[0]["scores"] == [0.5, 0.5] and "Explanation(" in repr(found)


@pytest.mark.parametrize(
    "arguments, words",
    [
        (dict(scores=[1.0, 2.0]), "dk: missing"),
        (dict(scores=[], dk=4), "scores"),
        (dict(scores=[math.nan], dk=4), "score"),
        (dict(scores=[1.0], dk=4, rules=["sqrt"]), "sqrt_dk"),
        (dict(scores=[1.0, 2.0], dk=4, gradient=[1.0]), "^gradient: 1 number, but there are 2 scores"),
        (dict(q=[1.0], keys=[[1.0, 2.0]]), "k"),
    ],
)
def test_explain_refuses(arguments, words):
    with pytest.raises(ValueError, match=words):
        rootdk.explain(**arguments)


def test_every_rule_in_the_registry_is_a_scale():
    x = np.ones((1, 1, 2, 4), np.float32)
    parameters = {"": "", "(a[, b])": "(0.5)", "(α)": "(2)"}
    tried = 0
    for rule in rootdk.rules():
        if rule.in_registry and rule.parameters in parameters:
            rootdk.attention(x, x, x, scale=rule.name + parameters[rule.parameters])
            tried += 1
    assert tried >= 3


def test_theory_is_measured(rng):
    q, k = rng.standard_normal((500, 16)), rng.standard_normal((700, 16)) + 0.5
    s = q @ k.T
    moments = theory.score_moments(q, k)
    assert moments.mean == pytest.approx(s.mean()) and moments.within_row_variance == pytest.approx(s.var(-1).mean())
    row = theory.softmax_row([50, 10, 5])
    assert row.p_max > 0.999 and row.sum == pytest.approx(math.exp(50), rel=1e-9)
    assert theory.critical_sigma(1024) == pytest.approx(math.sqrt(2 * math.log(1024)))
    assert theory.dot_product_variance(64, mean_q=1, variance_k=4) == pytest.approx(64 * (4 + 4))
    rows = rng.standard_normal((2000, 1024)) * 2
    p = np.exp(rows) / np.exp(rows).sum(-1, keepdims=True)
    soft = theory.gaussian_softmax(2.0, 1024)
    for found, measured in (
        (soft.entropy, -(p * np.log(p)).sum(-1)),
        (soft.p_max, p.max(-1)),
        (soft.sum_p2, (p * p).sum(-1)),
    ):
        assert abs(found - measured.mean()) < 5 * measured.std() / math.sqrt(len(measured))

    w_q, w_k = rng.standard_normal((8, 32)), rng.standard_normal((8, 32))
    head = theory.head(w_q, w_k)
    assert head.within_row_variance == pytest.approx(np.trace(w_q @ w_q.T @ w_k @ w_k.T))
    assert head.sigma == pytest.approx(math.sqrt(head.within_row_variance / 8))


@pytest.mark.parametrize(
    "call",
    [
        lambda: theory.critical_sigma(1),
        lambda: theory.gaussian_softmax(-1.0, 10),
        lambda: theory.softmax_row([]),
        lambda: theory.score_moments([[1.0, 2.0]], [[1.0]]),
        lambda: theory.score_moments([1.0], [1.0]),
        lambda: theory.head([[1.0]], [[1.0], [2.0]]),
        lambda: theory.dot_product_variance(0),
    ],
)
def test_theory_refuses(call):
    with pytest.raises(ValueError):
        call()
