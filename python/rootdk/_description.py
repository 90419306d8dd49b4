"""A problem as the package describes it, once: for the compiled module, for rootdk/c.h (_cuda.py), and for the
operators of torch, whose schemas have room for one list of whole numbers and one of reals, which cost nothing that a
small call would notice. python/src/description.cc reads the lists in C++."""

from __future__ import annotations

from typing import Any, NamedTuple, Optional, Sequence

from . import _core
from ._problem import StatsOptions, checked
from ._structure import Structure

Packed = tuple[Optional[list[int]], Optional[list[float]]]


class Description(NamedTuple):
    """What a problem says in numbers."""

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
        if not self.rule:
            raise ValueError('scale: "" is not known; rootdk.rules() has those that are')
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


class Problem(NamedTuple):
    """All of it: the numbers, what is there once for each query head, and arrays; and what is to be learned."""

    description: Description = Description()
    scale: Sequence[float] = ()
    sink: Sequence[float] = ()
    mask: Any = None  #: an array for the compiled module, a view for _cuda
    bias: Any = None
    stats: Optional[StatsOptions] = None
    seed_address: Optional[int] = None  #: of device memory that holds the seed, in its place

    def spec(self) -> _core.Spec:
        """For the compiled module."""
        numbers, reals = self.description.packed()
        spec = _core.Spec(numbers or [], reals or [], self.scale, self.sink)
        if self.mask is not None:
            spec.set_allowed(self.mask)
        if self.bias is not None:
            spec.set_bias(self.bias)
        if self.stats is not None:
            wanted = checked(self.stats)
            spec.stats = self.stats.level
            for name, value in wanted.items():
                setattr(spec, name, value)
        return spec
