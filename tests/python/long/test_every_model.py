"""watch on every architecture that transformers makes from a small config: eager, sdpa and rootdk; padded left and
right; generation; training with and without checkpoints; compiled. `./run test-long`."""

from __future__ import annotations

import functools

import matrix
import models
import pytest
import torch

NAMES = models.names()
#: Whose absence would mean that the list is not made any more, rather than that an architecture is new.
KNOWN = """llama mistral mixtral qwen2 qwen2_moe qwen3 qwen3_next gemma gemma2 gemma3_text phi phi3 gpt2 gpt_neo
gpt_neox gptj opt bloom mpt falcon starcoder2 stablelm cohere cohere2 olmo olmo2 granite deepseek_v2 deepseek_v3
gpt_oss llama4_text codegen xglm biogpt persimmon nemotron glm smollm3 bert roberta distilbert albert electra deberta
deberta-v2 mpnet xlm xlnet longformer big_bird funnel modernbert vit deit dinov2 clip siglip wav2vec2 hubert whisper
t5 mt5 bart mbart pegasus m2m_100 blenderbot""".split()


@functools.lru_cache(maxsize=1)
def case(name: str) -> matrix.Case:
    try:
        return matrix.Case(name)
    except models.Unbuildable as e:
        pytest.skip(f"{name}: {e}")


@pytest.mark.parametrize("check", matrix.CHECKS)
@pytest.mark.parametrize("name", NAMES)
def test_a_watched_model(name, check):
    """The same output as unwatched, statistics as in eager, and what was not seen is named."""
    assert matrix.CHECKS[check](case(name)) == []


@pytest.mark.parametrize("name", NAMES)
def test_a_compiled_model(name):
    """As one graph where the model is one. By the implementation that transformers would take."""
    found = case(name)
    implementation = "sdpa" if "sdpa" in found.by else "eager"
    assert matrix.compiled(found, implementation, fullgraph=True) == []
    assert matrix.compiled(found, implementation, fullgraph=False) == []
    torch._dynamo.reset()


def test_the_list_is_whole():
    """Prints what cannot be built, and why."""
    left = {}
    for name in NAMES:
        try:
            models.build(name)
        except models.Unbuildable as e:
            left[name] = str(e)
    print(f"\n{len(NAMES) - len(left)} architectures; {len(left)} cannot be built from a small config:")
    for name, reason in left.items():
        print(f"  {name}: {reason}")
    assert not {
        name: left.get(name, "transformers does not list it") for name in KNOWN if name in left or name not in NAMES
    }
    assert len(NAMES) - len(left) >= 300
