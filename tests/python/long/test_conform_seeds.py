"""conform accuses no function that is right, whatever the random batches: 200 seeds in each of the narrow dtypes, where
rounding is largest. `./run test-long`."""

from __future__ import annotations

import pytest
import rootdk
from test_conform_right import RIGHT, SMALL

SEEDS = 200


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", RIGHT)
def test_what_is_right_is_not_accused_on_any_seed(name, dtype):
    function, promise = RIGHT[name]
    accused = {}
    for seed in range(SEEDS):
        result = rootdk.conform(function, promise, dtype=dtype, mask="mask", seed=seed, **SMALL)
        if not all(finding.ok for finding in result.findings):
            accused[seed] = str(result)
    assert not accused, f"{len(accused)} of {SEEDS}: {next(iter(accused.items()))}"
