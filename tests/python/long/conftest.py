"""Beside the short tests, from which these take their models and checks.

ROOTDK_SHARD=1/2 and 2/2 divide models and tests between two processes, side by side.
"""

from __future__ import annotations

import os
import pathlib
import sys

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE.parent))


def pytest_collection_modifyitems(config, items):
    """The checks of one model stay together, as they share it; models are dealt out in turn."""
    shard, _, shards = os.environ.get("ROOTDK_SHARD", "1/1").partition("/")
    keys = {}
    kept, left = [], []
    for item in items:
        name = item.callspec.params.get("name") if hasattr(item, "callspec") else None
        at = keys.setdefault(name or item.nodeid, len(keys)) % int(shards)
        here = HERE in item.path.parents
        elsewhere = at != int(shard) - 1 and not getattr(item.function, "in_every_shard", False)
        (left if here and elsewhere else kept).append(item)
    items[:] = kept
    config.hook.pytest_deselected(items=left)


def pytest_terminal_summary(terminalreporter):
    seen = getattr(sys.modules.get("test_every_model"), "SEEN", None)
    if seen:
        named = [name for name, modules in seen.items() if modules]
        terminalreporter.write_line(
            f"Of {len(seen)} architectures that compute attention, it is all seen in {len(seen) - len(named)}"
            + (f"; named instead: {', '.join(named)}" if named else "")
        )
