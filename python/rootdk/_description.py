"""What an operator of torch computes beside its tensors, as one list of whole numbers and one of reals: a schema has
room for those, and reading them costs nothing that a small call would notice. python/src/torch/description.cc reads
them in C++."""

from __future__ import annotations

from typing import Any, NamedTuple, Optional, Sequence

from ._structure import Structure

Packed = tuple[Optional[list[int]], Optional[list[float]]]


class Description(NamedTuple):
    structure: Structure = Structure()
    rule: str = "sqrt_dk"  #: of the scale, as rootdk.rules() has them; where there is neither a factor nor a tensor
    factor: Optional[float] = None
    softcap: Optional[float] = None
    alibi: Optional[tuple[float, ...]] = None  #: one slope per query head
    dropout: float = 0.0
    seed: int = 0  #: where no tensor has it

    def packed(self) -> Packed:
        """(seed, the structure's numbers, the rule's letters) and (has a factor, factor, has a cap, cap, dropout,
        slopes). What is missing at the end of the whole numbers is as at first; None stands for nothing at all."""
        numbers: list[int] = []
        letters = [] if self.rule == "sqrt_dk" else [ord(letter) for letter in self.rule]
        structure = self.structure.packed(whole=bool(letters))
        if self.seed or structure or letters:
            numbers = [self.seed, *structure, *letters]
        reals: list[float] = []
        if self.factor is not None or self.softcap is not None or self.alibi or self.dropout:
            reals = [
                float(self.factor is not None),
                0.0 if self.factor is None else self.factor,
                float(self.softcap is not None),
                0.0 if self.softcap is None else self.softcap,
                self.dropout,
                *(self.alibi or ()),
            ]
        return numbers or None, reals or None

    @staticmethod
    def unpacked(numbers: Optional[Sequence[int]], reals: Optional[Sequence[float]]) -> Description:
        structure, rule, seed = Structure(), "sqrt_dk", 0
        if numbers:
            seed = numbers[0]
            structure, letters = Structure.unpacked(numbers[1:])
            if letters:
                rule = "".join(chr(letter) for letter in letters)
        if not reals:
            return Description(structure, rule, seed=seed)
        has_factor, factor, has_softcap, softcap, dropout, *alibi = reals
        return Description(
            structure,
            rule,
            factor if has_factor else None,
            softcap if has_softcap else None,
            tuple(alibi) or None,
            dropout,
            seed,
        )

    def into(self, spec: Any) -> None:
        """Into the compiled module's Spec, or that of _cuda."""
        if self.factor is not None:
            spec.scale_value = self.factor
        else:
            spec.scale = self.rule
        spec.softcap = self.softcap
        self.structure.into(spec)
        if self.alibi is not None:
            spec.alibi = list(self.alibi)
        spec.dropout = self.dropout
        spec.seed = self.seed
