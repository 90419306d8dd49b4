"""watch on every architecture that transformers makes from a small config: eager, sdpa and rootdk; padded left and
right; generation; training with and without checkpoints of either kind; compiled. `./run test-long`.

ROOTDK_SHARD=1/2 and 2/2 divide it between two processes (conftest.py)."""

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


#: Whose attention is not all seen, and why. All else that computes attention is in the statistics, whatever it is
#: computed by, padded, generating and training.
NAMED_ONLY = {
    "longformer": "windows cut from a product, as strides into it",
    "led": "as longformer",
    "groupvit": "the softmax that assigns pixels to groups goes over groups",
}
CHECKS = {**matrix.CHECKS, "compiled": matrix.compilations}
SEEN: dict[str, set[str]] = {}  #: of each architecture the modules that were named instead; for conftest.py
#: By check, for each architecture that was tried in this process, whether it ran. One that a class has not, or cannot
#: do unwatched, is skipped: if all are, it is the check that does not work.
RAN: dict[str, dict[str, bool]] = {}
#: Of the architectures tried, the part that must run: of 361, 81 % take a mask for tokens, 51 % generate, 92 % have
#: checkpoints.
FLOORS = {
    "forward": 0.98,
    "padded left": 0.7,
    "padded right": 0.7,
    "generate": 0.4,
    "generate static": 0.4,
    "train": 0.85,
    "train checkpointed": 0.7,
    "train checkpointed, reentrant": 0.7,
    "compiled": 0.9,
}
FEW = 20  #: architectures, of which no part can be told: one process of very many, or some picked by name


@functools.lru_cache(maxsize=1)
def built(name: str) -> matrix.Case | models.Unbuildable:
    try:
        return matrix.Case(name)
    except models.Unbuildable as e:
        return e


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("name", NAMES)
def test_a_watched_model(name, check):
    """The same output as unwatched, statistics as in eager, and all of its attention is seen."""
    found = built(name)
    if isinstance(found, models.Unbuildable):
        pytest.skip(f"{name}: {found}")
    found.only_named.clear()
    found.ran.clear()
    try:
        assert CHECKS[check](found) == []
    finally:
        RAN.setdefault(check, {})[name] = bool(found.ran)
    if not found.ran:
        pytest.skip(f"{name}: {check}: not for this class, or it cannot do that unwatched")
    if check == "compiled":
        torch._dynamo.reset()
        return
    named = {module for modules in found.only_named.values() for module in modules}
    if found.attends:
        SEEN[name] = SEEN.get(name, set()) | named
    assert not named or name in NAMED_ONLY, found.only_named
    assert named or name not in NAMED_ONLY


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


def test_the_checks_ran():
    """In every process, after its share of the models."""
    parts = {check: sum(ran.values()) / len(ran) for check, ran in RAN.items() if len(ran) >= FEW}
    print("\n" + "\n".join(f"{check}: ran in {part:.0%} of {len(RAN[check])}" for check, part in parts.items()))
    assert {check: part for check, part in parts.items() if part < FLOORS[check]} == {}


test_the_checks_ran.in_every_shard = True
