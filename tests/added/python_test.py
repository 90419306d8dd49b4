"""The statistic that docs/architecture.md adds is a property of the package's classes and a row of the page's tables;
the mask that it adds is one that the package packs.

usage: python_test.py FOLDER        (the one whose rootdk/statistics.def and masks.def have them)
"""

import importlib.util
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
NAME = "renyi_entropy"
sys.path.insert(0, str(ROOT / "tools"))
import tables  # noqa: E402

include = pathlib.Path(sys.argv[1])
table = tables.read(include)
found = {(s.kind, s.level, s.merges) for s in table if s.name == NAME}
assert found == {("head", "full", "mean_by_rows_sampled"), ("full_row", "full", "derived")}, found
assert any(s.name == f"{NAME}_error" for s in table)
assert not any(s.name == NAME for s in tables.read(ROOT / "include"))

shown = tables.tables(table)
assert f"| `{NAME}` | full |" in shown["heads"] and f"| `{NAME}` | full |" in shown["rows"]
assert NAME not in shown["gradients"]
page = tables.PAGE.read_text(encoding="utf-8")
assert (
    tables.page_with(page, table).count(f"`{NAME}`") == 2
    and tables.page_with(page, tables.read(ROOT / "include")) == page
)
tool = [sys.executable, str(ROOT / "tools/tables.py")]
assert subprocess.run([*tool, "check", "--include", str(include)], capture_output=True).returncode == 1, "lint sees it"

text = tables.module(table)
for part in (f"def {NAME}(self) -> Array:", f"def {NAME}(self) -> Any:", f'Statistic("{NAME}", "full", "real", '):
    assert text.count(part) == 1, part
try:
    import numpy  # noqa: F401
except ImportError:
    sys.exit(0)
with tempfile.TemporaryDirectory() as folder:
    subprocess.run([*tool, "modules", folder, "--include", str(include)], check=True)

    def imported(name):
        spec = importlib.util.spec_from_file_location(name, pathlib.Path(folder) / f"{name}.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    module, masks = imported("_statistics"), imported("_masks")

    class Heads(module.HeadStatistics):
        def _column(self, name):
            return name

    assert Heads().renyi_entropy == NAME and NAME in module.FULL_ROWS
    assert "Rényi" in module.HeadStatistics.renyi_entropy.__doc__
    assert [(x.name, x.axis) for x in masks.PER_ITEM[:2]] == [("key_starts", "kv"), ("query_starts", "q")]
    assert masks.PER_ITEM[1].doc == "rows before it are padding"
