"""watch on one model for each pattern of masks and scores. `./run test-long` holds every architecture to the same
(long/test_every_model.py)."""

from __future__ import annotations

import functools

import pytest

pytest.importorskip("transformers")

import matrix
import models
import torch

PATTERNS = {
    "bert": "plain: every query sees every key",
    "llama": "causal, several queries' heads to a key's",
    "mistral": "a sliding window",
    "gemma3_text": "windows and full layers in turn, norms on q and k",
    "gemma2": "a soft-cap",
    "gpt_oss": "a sink, and a window",
    "bloom": "slopes (ALiBi) in the product's own sum",
    "mpt": "slopes (ALiBi) added to the scores",
    "t5": "a learned bias by position, no scale, and cross-attention",
    "bart": "cross-attention",
    "qwen3": "norms on q and k",
    "llama4_text": "chunks, and norms without gains",
    "deepseek_v3": "latent keys and values, of other sizes",
    "opt": "q scaled before the product",
    "falcon": "one head of keys, attention by itself",
    "deberta-v2": "content and position disentangled",
    "vit": "images: no mask at all",
}


@functools.lru_cache(maxsize=1)
def case(name: str) -> matrix.Case:
    return matrix.Case(name)


@pytest.mark.parametrize("check", matrix.CHECKS)
@pytest.mark.parametrize("name", PATTERNS)
def test_a_watched_model(name, check):
    """The same output as unwatched, statistics as in eager, and all of its attention is seen."""
    found = case(name)
    found.only_named.clear()
    assert matrix.CHECKS[check](found) == []
    assert {what: modules for what, modules in found.only_named.items() if modules} == {}
    tiny = found.by["eager"]
    runs = {"generate": tiny.generates, "padded": tiny.padded}.get(check.split()[0], True)
    assert bool(found.only_named) == runs


def test_a_compiled_model():
    """As one graph; that it compiles unwatched is not left open."""
    found = case("llama")
    found.ran.clear()
    assert matrix.compilations(found) == []
    assert found.ran == {"compile fullgraph/sdpa", "compile fullgraph/rootdk"}


def test_what_does_not_compile_is_not_taken_for_checked(monkeypatch):
    def refuses(*args, **kwargs):
        raise RuntimeError

    found = case("llama")
    found.ran.clear()
    monkeypatch.setattr(torch, "compile", refuses)
    assert matrix.compilations(found) == [] and not found.ran


def test_the_checks_see_what_is_wrong():
    """A model that is not the same twice, one whose layers nobody names, statistics of another model."""
    import rootdk

    found = case("bert")
    tiny = found.by["eager"]
    with torch.no_grad(), rootdk.watch(tiny.model) as one:
        output = tiny.model(**tiny.inputs)
    with torch.no_grad(), rootdk.watch(tiny.model) as other:
        shorter = {key: value[:, :9] for key, value in tiny.inputs.items()}
        tiny.model(**shorter)
    assert matrix.close("", output, [x + 1e-6 for x in matrix.tensors(output)], exact=True)
    assert matrix.close("", output, [x * (1 + 1e-4) for x in matrix.tensors(output)], exact=False)
    assert not matrix.close("", output, [x * (1 + 1e-7) for x in matrix.tensors(output)], exact=False)
    with torch.no_grad(), rootdk.watch(tiny.model) as twice:
        tiny.model(**tiny.inputs)
        tiny.model(**tiny.inputs)
    assert matrix.same_statistics("", one, other) and not matrix.same_statistics("", one, one)
    for a, b in ((one, twice), (twice, one)):
        assert any("step 1" in problem for problem in matrix.same_statistics("", a, b))
    assert matrix.unnamed("", one, found.attends | {"encoder.layer.7"}) and not matrix.unnamed("", one, found.attends)
    assert matrix.only_named(one, found.attends | {"encoder.layer.7"}) == {"encoder.layer.7"}
    assert not matrix.only_named(one, found.attends)
    assert (
        found.attends == {"bert.encoder.layer.0.attention.self", "bert.encoder.layer.1.attention.self"}
        and not found.fused
    )


def test_sizes_are_small():
    for name in PATTERNS:
        model = models.build(name).model
        assert sum(p.numel() for p in model.parameters()) < 200_000, name
