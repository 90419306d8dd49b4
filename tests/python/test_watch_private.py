"""The package keeps its fields private from itself: what begins with an underscore is written by its own object only,
so that a class can be read by itself."""

from __future__ import annotations

import ast
import pathlib

import pytest
import rootdk

PACKAGE = pathlib.Path(rootdk.__file__).parent
#: (file, what is written): why
EXCEPTIONS = {
    ("distributed/_attention.py", "outer._torchdynamo_disable"): "how one tells torch's compiler to call it as it is",
    ("torch.py", "_gpu_missing._dynamo_marked_constant"): "how a function tells torch's compiler that it is constant",
    ("_watch/gains.py", "probe._parameters"): "a copy of the user's norm, tried on random numbers; torch's own table",
}
#: Methods of lists, dictionaries and sets that change them.
CHANGES = set("append extend insert add update setdefault pop popitem remove discard clear sort reverse".split())


def fields(target):
    """Private fields of others in what is assigned to: x._field, x._field[i], x._field.part."""
    while True:
        if isinstance(target, (ast.Tuple, ast.List)):
            for part in target.elts:
                yield from fields(part)
            return
        if isinstance(target, ast.Attribute):
            name = target.attr
            if name.startswith("_") and not name.endswith("__") and ast.unparse(target.value) not in ("self", "cls"):
                yield ast.unparse(target)
        elif not isinstance(target, (ast.Subscript, ast.Starred)):
            return
        target = target.value


def written(source):
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.Assign, ast.Delete)):
            targets = node.targets
        elif isinstance(node, (ast.AugAssign, ast.AnnAssign, ast.For)):
            targets = [node.target]
        elif isinstance(node, (ast.With, ast.AsyncWith)):
            targets = [item.optional_vars for item in node.items if item.optional_vars is not None]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in CHANGES:
            targets = [node.func.value]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("setattr", "delattr"):
            name = node.args[1]
            named = isinstance(name, ast.Constant) and str(name.value).startswith("_")
            if named and ast.unparse(node.args[0]) not in ("self", "cls"):
                yield f"{ast.unparse(node.args[0])}.{name.value}"
            continue
        else:
            continue
        for target in targets:
            yield from fields(target)


def test_nobody_writes_into_the_private_fields_of_others():
    found = {
        (path.relative_to(PACKAGE).as_posix(), what)
        for path in PACKAGE.rglob("*.py")
        for what in written(path.read_text())
    }
    assert found == set(EXCEPTIONS)


@pytest.mark.parametrize(
    "line",
    [
        "{}._x = 1",
        "{}._x += 1",
        "{}._x: int = 1",
        "{}._x[0] = 1",
        "a, ({}._x, b) = c",
        "del {}._x",
        "{}._x.append(1)",
        "{}._x[1].update({{}})",
        "setattr({}, '_x', 1)",
        "for {}._x in y: pass",
        "with a as {}._x: pass",
    ],
)
def test_it_would_be_found(line):
    for other in ("w", "self.w", "w()"):
        assert [*written(line.format(other))], other
    assert not [*written(line.format("self"))]
    assert not [*written(line.replace("_x", "x").format("w"))]
