"""Messages are one line, name the argument, and speak of nothing that only the engine's source has names for."""

from __future__ import annotations

import ast
import pathlib
import re

import numpy as np
import pytest
import rootdk
from rootdk import theory

ROOT = pathlib.Path(__file__).parents[2]
# Qualified names, constants as the engine writes them, what a binding says of itself, and fields that users know by
# another name.
INTERNAL = re.compile(
    r"\w::\w|\bk[A-Z][a-z]\w*|nanobind|bad_cast|incompatible function"
    r"|\b(judge_at|upstream|stats_options|q_starts|kv_starts|alibi_slopes)\b"
)

# Literals that are no messages, by file.
ALLOWED = {
    "src/report/explain.cc": {"upstream_gradient"},  # a key of results.json
    "src/lab/rules.cc": {"alibi in Python, alibi_slopes in C and C++"},  # says whose name it is
    "src/engine/c_structs.cc": {"alibi_slopes"},  # a field of the C ABI, of which a pointer may be null
    "python/rootdk/_cuda.py": {"alibi_slopes"},  # the same
    "python/rootdk/_problem.py": {"alibi_slopes"},  # FlashAttention's name, which is told from ours
    "python/rootdk/_flash/arguments.py": {"alibi_slopes", "alibi_slopes: "},  # of FlashAttention's functions
    "python/src/audit.cc": {"judge_at"},  # an attribute of the compiled module
}


def c_literals(text):
    """(line, what is between the quotes), without comments, #include and asm."""
    token = re.compile(
        r"""
        //[^\n]* | /\*.*?\*/ | ^\s*\#\s*include[^\n]* | \basm\b(?:"(?:[^"\\]|\\.)*"|[^;"])*;        # skipped
        | R"(?P<mark>[^(\s]*)\((?P<raw>.*?)\)(?P=mark)"
        | "(?P<plain>(?:[^"\\\n]|\\.)*)"
        | (?<![0-9a-zA-Z_])'(?:[^'\\\n]|\\.[^'\n]*)'                           # a character, which may be a quote
        """,
        re.S | re.M | re.X,
    )
    for found in token.finditer(text):
        literal = found["plain"] if found["plain"] is not None else found["raw"]
        if literal is not None:
            yield text.count("\n", 0, found.start()) + 1, literal


def python_literals(text):
    """Without docstrings and what torch names operators by."""
    tree = ast.parse(text)
    quiet = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("torch.library."):
            quiet |= {id(argument) for argument in node.args}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in quiet:
            yield node.lineno, node.value


def literals():
    endings = (".cc", ".h", ".cu", ".cuh", ".py")
    for top in ("src", "apps", "python"):
        for path in sorted((ROOT / top).rglob("*")):
            if path.suffix in endings and path.is_file() and not path.is_symlink():
                read = python_literals if path.suffix == ".py" else c_literals
                for line, literal in read(path.read_text(encoding="utf-8")):
                    yield str(path.relative_to(ROOT)), line, literal


def test_no_literal_has_a_name_of_the_source():
    found = list(literals())
    assert len(found) > 3000 and any(literal == "{}: dtype is {}, but q has {}" for _, _, literal in found)
    assert [
        f"{path}:{line}: {literal}"
        for path, line, literal in found
        if INTERNAL.search(literal) and literal not in ALLOWED.get(path, ()) and not literal.startswith("(Tensor ")
    ] == []


def test_the_search_sees_what_it_is_for():
    text = """
    #include "kFull::x"
    // "Scale::a"
    /* "Scale::b" */
    asm volatile("mbarrier::c;" ::"n"(kPending));
    refuse('"', "Scale::d");  const char* s = R"X(kFull "Scale::e")X"; int n = 1'000; g("Mask::f \\" quoted");
    """
    assert [literal for _, literal in c_literals(text)] == ["Scale::d", 'kFull "Scale::e"', 'Mask::f \\" quoted']
    assert all(INTERNAL.search(literal) for _, literal in c_literals(text))
    text = '"""A::doc"""\nraise E("A::b")\ntorch.library.impl("a::op", f)'
    assert [literal for _, literal in python_literals(text)] == ["A::b"]
    assert not INTERNAL.search("k: heads_kv is 3; kB and k1")


# Wrong types ----------------------------------------------------------------------------------------------------------

W, X = np.eye(4), np.ones((1, 2, 3, 4), np.float32)
FULL = rootdk.attention(X, X, X, stats="full")[1]
STEIN = dict(score_within_row_variance=1.0, mean_score=1.0, sum_p2=0.1)

NUMBER = ["a", "3", None, [1], object(), 1j, b"x", np.zeros((2, 2)), {}]
WHOLE = [*NUMBER, 1.5, 10**30]
LIST = ["a", "3", object(), 1j, b"x", 5, 1.5, {}, ["a"], [None], [[1]], [1j]]
ARRAY = ["a", object(), 1j, b"x", {}, [["a"]], [[1j]], [[1], [1, 2]], np.ones((2, 2), complex)]
TEXT = [3, None, b"x", [1], object()]

CALLS = [
    ("dim_qk", WHOLE, lambda bad: theory.dot_product_variance(bad)),
    *(
        (name, NUMBER, lambda bad, name=name: theory.dot_product_variance(4, **{name: bad}))
        for name in ("mean_q", "variance_q", "mean_k", "variance_k")
    ),
    ("dim_qk", WHOLE, lambda bad: theory.unit_variance_divisor(bad)),
    *(
        (name, NUMBER, lambda bad, name=name: theory.unit_variance_divisor(4, **{name: bad}))
        for name in ("mean_q", "variance_q", "mean_k", "variance_k")
    ),
    ("keys", NUMBER, lambda bad: theory.critical_sigma(bad)),
    ("sigma", NUMBER, lambda bad: theory.gaussian_softmax(bad, 3)),
    ("keys", NUMBER, lambda bad: theory.gaussian_softmax(1.0, bad)),
    ("dim_qk", [bad for bad in WHOLE if bad is not None], lambda bad: theory.gaussian_softmax(1.0, 30, bad)),
    ("scores", [*LIST, None], lambda bad: theory.softmax_row(bad)),
    ("q", [*ARRAY, None, 5], lambda bad: theory.score_moments(bad, W)),
    ("k", [*ARRAY, None, 5], lambda bad: theory.score_moments(W, bad)),
    ("w_q", [*ARRAY, None, 5], lambda bad: theory.head(bad, W)),
    ("w_k", [*ARRAY, None, 5], lambda bad: theory.head(W, bad)),
    *((name, ARRAY, lambda bad, name=name: theory.head(W, W, **{name: bad})) for name in ("b_q", "b_k", "rotary")),
    ("scale", [bad for bad in NUMBER if bad is not None], lambda bad: theory.head(W, W, scale=bad)),
    ("interleaved", [*NUMBER, 1], lambda bad: theory.head(W, W, interleaved=bad)),
    ("context", WHOLE, lambda bad: theory.head(W, W, context=bad)),
    *((name, NUMBER, lambda bad, name=name: theory.stein_ratio(**{**STEIN, name: bad})) for name in STEIN),
    ("scores", LIST, lambda bad: rootdk.explain(bad, dk=4)),
    ("dk", [bad for bad in WHOLE if bad is not None], lambda bad: rootdk.explain([1, 2], dk=bad)),
    ("q", LIST, lambda bad: rootdk.explain(q=bad, keys=[[1]])),
    ("keys", [*LIST[:-2], [[1j]]], lambda bad: rootdk.explain(q=[1, 2], keys=bad)),
    (
        "rules",
        ["sqrt_dk", 5, None, object(), b"x", [1], [None], [b"dk"]],
        lambda bad: rootdk.explain([1, 2], dk=4, rules=bad),
    ),
    ("gradient", LIST, lambda bad: rootdk.explain([1, 2], dk=4, gradient=bad)),
    ("model", [3, None, b"x", [1], object(), 1.5], lambda bad: rootdk.audit(bad)),
    ("text", TEXT, lambda bad: rootdk.Stats.from_json(bad)),
    ("text", TEXT, lambda bad: rootdk.GradientStats.from_json(bad)),
    ("other", TEXT, lambda bad: FULL.merge(bad)),
    ("dtype", TEXT, lambda bad: FULL.judge(bad)),
    ("head", WHOLE, lambda bad: FULL.judge_head(bad)),
    ("batch", WHOLE, lambda bad: FULL.judge_head(0, batch=bad)),
    ("v", ["a", 3, None, object(), [1]], lambda bad: rootdk.attention(X, X, bad)),
    ("v", ["a", 3, None, object(), [1]], lambda bad: rootdk.explain_plan(X, X, bad)),
    ("backward", ["a", None, 1], lambda bad: rootdk.explain_plan(X, X, X, backward=bad)),
]


@pytest.mark.parametrize(
    "name, bad, call",
    [
        pytest.param(name, bad, call, id=f"{number}-{name}-{type(bad).__name__}")
        for number, (name, all_bad, call) in enumerate(CALLS)
        for bad in all_bad
    ],
)
def test_wrong_types_are_named(name, bad, call):
    with pytest.raises((TypeError, ValueError)) as caught:
        call(bad)
    words = str(caught.value)
    assert re.match(rf"{name}(\[\d+\])?: ", words) and "\n" not in words and not INTERNAL.search(words), words


def test_numbers_of_any_kind_are_taken():
    for number in (np.float32(1024), np.array(1024)):
        assert theory.critical_sigma(number) == theory.critical_sigma(1024)
    assert theory.dot_product_variance(np.int64(64)) == 64
    assert theory.softmax_row((14, 10, 12)).p_max == theory.softmax_row(np.array([14, 10, 12])).p_max
    assert rootdk.explain(np.array([14, 10, 12]), dk=np.int32(64)).data == rootdk.explain([14, 10, 12], dk=64).data
    assert theory.head(W.astype(np.float32), W.tolist()) == theory.head(W, W)


def test_weights_of_a_model_are_taken():
    torch = pytest.importorskip("torch")
    weight = torch.nn.Parameter(torch.eye(4, dtype=torch.bfloat16))
    with pytest.raises(TypeError, match="^k: ndarray, but a torch tensor"):
        rootdk.explain_plan(torch.ones(1, 2, 3, 4), X, X)
    assert theory.head(weight, weight) == theory.head(W, W)
    assert theory.score_moments(weight, weight) == theory.score_moments(W, W)


# What the engine says ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change, words",
    [
        (dict(mask=np.zeros((3, 3), np.float32)), "mask: dtype"),
        (dict(mask=np.zeros((5, 5), bool)), "mask: shape"),
        (dict(bias=np.zeros((5, 5), np.float32)), "bias: shape"),
        (dict(window=(-3, 2)), "window: "),
        (dict(key_lengths=[9]), "key_lengths: entry 0"),
        (dict(key_starts=[9]), "key_starts: entry 0"),
        (dict(query_lengths=[9]), "query_lengths: entry 0"),
        (dict(documents=[1, 2]), "documents of q: begins"),
        (dict(documents=[[0, 1], [0, 9]]), "documents: of 2 items, but batch is 1"),
        (dict(documents=[[0, 9]]), "documents of q, item 0: ends at 9"),
        (dict(documents=([[0, 1]], [0, 1])), "documents: of 1 items for q and of the whole batch for k"),
        (dict(documents=[[0, 1], []]), "documents: an item has none"),
        (dict(documents=([0, 1], [0, 1, 2])), "documents: q has 2"),
        (dict(alibi=[float("nan")] * 2), "alibi: value nan"),
        (dict(softcap=-1), "softcap: -1"),
        (dict(dropout=1.5), "dropout: 1.5"),
        (dict(causal=True, diagonal="last_key"), "diagonal: last_key"),
        (dict(causal=True, diagonal=2**50), "diagonal: offset"),
        (dict(stats=rootdk.StatsOptions(sample=0)), "stats.sample: 0"),
        (dict(stats=rootdk.StatsOptions(sample=2, sample_offset=5)), "stats.sample_offset: 5"),
        (dict(stats=rootdk.StatsOptions(first_query=-5)), "stats.first_query: -5"),
        (dict(scale="per_head"), "scale: per_head is a number for each head"),
        (dict(scale="ssmax(0.5)", mask=np.ones((3, 3), bool)), "scale: ssmax counts .* but a boolean mask may hide"),
    ],
)
def test_arguments_are_called_what_they_are_called(change, words):
    with pytest.raises(ValueError, match=f"^{words}"):
        rootdk.attention(X, X, X, **change)


def test_verdicts_and_rules_speak_plainly():
    judged = rootdk.attention(X, X, X, stats="basic")[1].judge_head(0)
    assert "full statistics" in judged.words + judged.fix and not INTERNAL.search(judged.words + judged.fix)
    assert not [rule for rule in rootdk.rules() if re.search(r"\w::\w", f"{rule}")]
    with pytest.raises(ValueError, match="^at: 1, but at least 2"):
        rootdk.audit(
            {
                "model.layers.0.self_attn.q_proj.weight": W,
                "model.layers.0.self_attn.k_proj.weight": W,
                "model.layers.0.input_layernorm.weight": np.ones(4),
            },
            heads=1,
            at=1,
        )
    with pytest.raises(ValueError, match="^gradient: 1 number, but there are 2 scores"):
        rootdk.explain([1, 2], dk=4, gradient=[1])
