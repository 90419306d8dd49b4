"""The statistic that docs/architecture.md adds is a property of the package's classes and a row of the page's tables.

usage: python_test.py FOLDER        (the one whose rootdk/statistics.def has it)
"""

import importlib.util
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
NAME = "renyi_entropy"
sys.path.insert(0, str(ROOT / "tools"))
import stats_table  # noqa: E402

include = pathlib.Path(sys.argv[1])
table = stats_table.read(include)
found = {(s.kind, s.level, s.merges) for s in table if s.name == NAME}
assert found == {("head", "full", "mean_by_rows_sampled"), ("full_row", "full", "derived")}, found
assert any(s.name == f"{NAME}_error" for s in table)
assert not any(s.name == NAME for s in stats_table.read(ROOT / "include"))

tables = stats_table.tables(table)
assert f"| `{NAME}` | full |" in tables["heads"] and f"| `{NAME}` | full |" in tables["rows"]
assert NAME not in tables["gradients"]
page = stats_table.PAGE.read_text(encoding="utf-8")
assert (
    stats_table.page_with(page, table).count(f"`{NAME}`") == 2
    and stats_table.page_with(page, stats_table.read(ROOT / "include")) == page
)
tool = [sys.executable, str(ROOT / "tools/stats_table.py")]
assert subprocess.run([*tool, "check", "--include", str(include)], capture_output=True).returncode == 1, "lint sees it"

text = stats_table.module(table)
for part in (f"def {NAME}(self) -> Array:", f"def {NAME}(self) -> Any:", f'Statistic("{NAME}", "full", "real", '):
    assert text.count(part) == 1, part
try:
    import numpy  # noqa: F401
except ImportError:
    sys.exit(0)
with tempfile.TemporaryDirectory() as folder:
    path = pathlib.Path(folder) / "_statistics.py"
    subprocess.run([*tool, "module", str(path), "--include", str(include)], check=True)
    spec = importlib.util.spec_from_file_location("_statistics", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    class Heads(module.HeadStatistics):
        def _column(self, name):
            return name

    assert Heads().renyi_entropy == NAME and NAME in module.FULL_ROWS
    assert "Rényi" in module.HeadStatistics.renyi_entropy.__doc__
