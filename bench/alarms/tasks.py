"""What the small models learn: a task with an exact answer, and a made-up language. Each gives tokens [BATCH, LENGTH]
and labels of the same shape, already shifted: the label at i is what should follow token i, or -100."""

from __future__ import annotations

import random

import torch

BATCH, LENGTH = 16, 32


class Copy:
    """A row of random tokens, then the same row again."""

    vocabulary, target = 32, 0.15

    def __init__(self, seed: int):
        self.random = torch.Generator().manual_seed(seed)

    def batch(self) -> tuple[torch.Tensor, torch.Tensor]:
        half = LENGTH // 2
        row = torch.randint(0, self.vocabulary, (BATCH, half), generator=self.random)
        labels = torch.full((BATCH, LENGTH), -100)
        labels[:, half - 1 : -1] = row
        return torch.cat([row, row], 1), labels


class Language:
    """Little stories: who has which colour and thing, a sentence whose verb agrees with a noun before a clause, then
    the same people again with what they have. The loss is that of every next word, as in language modelling; most of it
    falls without any attention, and it never comes near nought."""

    NAMES = ["Anna", "Ben", "Clara", "David", "Emma", "Felix"]
    COLOURS = ["red", "blue", "green", "white", "black", "grey"]
    THINGS = ["key", "cup", "book", "coat", "lamp", "ring"]
    NOUNS = [("bird", "birds"), ("cat", "cats"), ("dog", "dogs"), ("goat", "goats")]
    VERBS = [("sings", "sing"), ("sleeps", "sleep"), ("runs", "run")]
    SEES = [("sees", "see"), ("hears", "hear")]
    vocabulary, target = 42, 0.9  # 0.65 with all that can be known, 1.35 without looking back
    OTHERS = [".", "the", "that", "so", "old", "small"]

    def __init__(self, seed: int):
        pairs = [word for forms in self.NOUNS + self.VERBS + self.SEES for word in forms]
        words = self.NAMES + self.COLOURS + self.THINGS + pairs + self.OTHERS
        self.number = {word: i for i, word in enumerate(words)}
        self.random = random.Random(seed)

    def sentence(self) -> list[str]:
        pick, many = self.random.choice, self.random.randrange(2)
        out = ["the", *([pick(["old", "small"])] if self.random.random() < 0.3 else []), pick(self.NOUNS)[many]]
        if self.random.random() < 0.3:
            other = self.random.randrange(2)
            out += ["that", "the", pick(self.NOUNS)[other], pick(self.SEES)[other]]
        return [*out, pick(self.VERBS)[many], "."]

    def story(self) -> list[str]:
        people = self.random.sample(self.NAMES, 2)
        facts = [[name, self.random.choice(self.COLOURS), self.random.choice(self.THINGS)] for name in people]
        out = [word for fact in facts for word in fact] + ["."] + self.sentence()
        while len(out) <= LENGTH:
            out += ["so", *self.random.choice(facts)]
        return out[: LENGTH + 1]

    def batch(self) -> tuple[torch.Tensor, torch.Tensor]:
        rows = torch.tensor([[self.number[word] for word in self.story()] for _ in range(BATCH)])
        return rows[:, :-1].contiguous(), rows[:, 1:].contiguous()


TASKS = {"copy": Copy, "language": Language}
