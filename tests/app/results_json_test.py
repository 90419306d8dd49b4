"""docs/results-json.md holds: what every verb prints with --json is what the page says, name by name and both ways.

usage: results_json_test.py COMMAND

The page writes a result as JSON without values: `{"name", "list": [{"name"}, …], "number": estimate, more…}`. A name
with `?` may be missing; a bare word is defined elsewhere (words below); names without a value hold numbers, words or
lists of them. What the table of statistics has is read from it.
"""

import json
import pathlib
import re
import struct
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import tables  # noqa: E402

COMMON = {"experiment": None, "conclusion?": None, "complete?": None}
TOKEN = re.compile(r'\s*("[^"]*"\??|[{}\[\]:,]|…|[^\s{}\[\]:,"…]+)')
TABLE = tables.read(ROOT / "include")
STATISTICS = [s for s in TABLE if s.kind == "head"]
#: What "word…" stands for among the names of an object.
SEVERAL = {
    "statistics": {f"{s.name}{'' if s.level == 'basic' else '?'}": None for s in STATISTICS},
    "means": {s.name: None for s in STATISTICS if s.merges == "mean_by_rows_sampled"},
}


class Parser:
    """Of the page's notation: objects become dicts, lists one-element lists, bare words themselves; None is any
    leaf."""

    def __init__(self, text):
        self.tokens = TOKEN.findall(text)
        self.at = 0

    def peek(self):
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def take(self):
        self.at += 1
        return self.tokens[self.at - 1]

    def value(self):
        token = self.take()
        if token == "{":
            return self.object()
        if token == "[":
            return self.list()
        words = [token]
        while self.peek() not in ("}", "]", ",", ""):
            words.append(self.take())
        return None if words[0].startswith('"') or words[0] in ("true", "false") or words[0][0].isdigit() else words[0]

    def object(self):
        found = {}
        while self.peek() != "}":
            token = self.take()
            if token.startswith('"'):
                name = token.replace('"', "")
                found[name] = None
                if self.peek() == ":":
                    self.take()
                    found[name] = self.value()
            elif token not in (",", "…"):  # words before "…"
                while self.peek() not in ("}", ","):
                    self.take()
                found[f"*{token}"] = None
        self.take()
        return found

    def list(self):
        inner = None
        while self.peek() != "]":
            if self.peek() in ("{", "["):
                inner = self.value()
            else:
                self.take()
        self.take()
        return [inner]


def sections():
    """By the verb, all that the page writes in its notation: indented, or between backticks."""
    found = {}
    for part in (ROOT / "docs/results-json.md").read_text(encoding="utf-8").split("\n## ")[1:]:
        title, _, body = part.partition("\n")
        blocks = re.findall(r"(?:^    .*\n?)+", body, re.M) or re.findall(r"`(\{[^`]*\})`", body)
        if blocks:
            found[title.strip()] = Parser(blocks[0]).value()
    return found


def definitions(text):
    """`A **word** is `{…}``."""
    found = re.findall(r"\*\*([a-z]+)\*\*\s+(?:is|are)\s+`(\{[^`]*\})`", text)
    return {word: Parser(block).value() for word, block in found}


def wrong(value, schema, words, path):
    """What does not agree, a line each; `seen` gathers the names that were there."""
    if isinstance(schema, str):
        schema = words.get(schema, schema)
        if isinstance(schema, str):
            yield f"{path}: the page does not say what {schema} is"
            return
    if value is None:  # what is not known
        return
    if isinstance(schema, dict):
        if not isinstance(value, dict):
            yield f"{path}: an object on the page, {type(value).__name__} in the result"
            return
        known = {}
        for name, inner in schema.items():
            if not name.startswith("*"):
                known[name] = inner
            elif name[1:] in SEVERAL:
                known.update(SEVERAL[name[1:]])
            elif name[1:] in words:
                known.update(words[name[1:]])
            else:
                yield f"{path}: the page does not say what {name[1:]}… are"
        for name in value.keys() - {name.rstrip("?") for name in known}:
            yield f"{path}.{name}: not on the page"
        for name, inner in known.items():
            if name.rstrip("?") in value:
                yield from wrong(value[name.rstrip("?")], inner, words, f"{path}.{name}")
            elif not name.endswith("?"):
                yield f"{path}.{name}: on the page, but not in the result"
    elif isinstance(value, dict):
        yield f"{path}: an object, of which the page says nothing"
    elif isinstance(value, list):
        for element in value:
            yield from wrong(element, schema[0] if isinstance(schema, list) else schema, words, f"{path}[]")


def npy(path, shape):
    count = 1
    for n in shape:
        count *= n
    head = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape!r}, }}"
    head += " " * (-(len(head) + 11) % 64) + "\n"
    values = [((i * 2654435761) % 1000 - 500) / 250 for i in range(count)]
    data = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head.encode() + struct.pack(f"<{count}f", *values)
    path.write_bytes(data)


def results(command, folder):
    """Every verb, small."""
    q, k = folder / "q.npy", folder / "k.npy"
    npy(q, (1, 2, 8, 16)), npy(k, (1, 2, 12, 16))
    verbs = {
        "explain": [["--scores", "14,10,12", "--dk", "64"], ["--q", "1,0,1", "--k", "0,1,1", "--k", "1,2,3"]],
        "variance": [["--dk", "4,16", "--pairs", "2000", "--walks", "2"], ["--dk", "4", "--pairs", "2000"]],
        "phase": [["--dk", "4", "--keys", "16", "--queries", "8", "--batches", "2"]],
        "playground": [[], ["--causal", "--soft-cap", "4"]],
        "gradient": [["--dk", "16", "--keys", "32", "--queries", "8", "--batches", "2"]],
        "precision": [["--dk", "16", "--keys", "32", "--queries", "8"]],
        "init": [["--widths", "64", "--dk", "16", "--tokens", "8", "--batches", "2"]],
        "train": [
            ["--steps", "4", "--seeds", "1", "--lr", "0.001", "--rules", "sqrt_dk,none", "--dk", "8", "--batch", "2"]
        ],
        "whatif": [[str(q), str(k)], [str(q), str(k), str(k), "--causal"]],
        "attend": [[str(q), str(k), str(k), "--stats", level] for level in ("none", "basic", "full")],
        "plan": [
            ["--ranks", "4", "--tokens", "8k"],
            ["--ranks", "16", "--tokens", "1M", "--causal", "--memory", "20GB"],
        ],
        "rules": [[]],
        "doctor": [[]],
        "bench": [["--rounds", "1"]],
    }
    for verb, calls in verbs.items():
        for arguments in calls:
            done = subprocess.run([command, verb, *arguments, "--json"], capture_output=True, text=True)
            assert done.returncode == 0, (verb, arguments, done.stderr)
            yield verb, json.loads(done.stdout)
    subprocess.run([command, "tour", "--quick", "--out", str(folder / "tour")], check=True, capture_output=True)
    whole = json.loads((folder / "tour/results.json").read_text())
    for chapter in whole["chapters"]:
        yield chapter["data"]["experiment"], chapter["data"]
        chapter["data"] = None
    yield "results.json", whole


def audit(command, folder):
    """docs/audit.md has no such notation; it names every member all the same."""
    page = (ROOT / "docs/audit.md").read_text(encoding="utf-8") + (ROOT / "docs/results-json.md").read_text(
        encoding="utf-8"
    )
    named = set(re.findall(r'["`]([a-z0-9_]+)["`:]', page))
    model = ROOT / "web/site/sample-trained.safetensors"
    done = subprocess.run([command, "audit", str(model), "--json"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr

    def names(node):
        for value in node if isinstance(node, list) else node.values() if isinstance(node, dict) else ():
            yield from names(value)
        yield from (name for name in (node if isinstance(node, dict) else ()) if not name.isdigit())

    return [f"audit: {name}: not in docs/audit.md" for name in sorted(set(names(json.loads(done.stdout))) - named)]


def main():
    command = str(pathlib.Path(sys.argv[1]).resolve())
    page = sections()
    words = definitions((ROOT / "docs/results-json.md").read_text(encoding="utf-8"))
    words["doctor"], words["rule"] = {**COMMON, **page["doctor"]}, page["rules"]["rules"][0]
    found, seen = set(), set()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        for verb, result in results(command, folder):
            seen.add(verb)
            schema = page[verb] if verb == "results.json" else {**COMMON, **page[verb]}
            found.update(wrong(result, schema, words, verb))
        found.update(audit(command, folder))
    helped = subprocess.run([command, "--help"], capture_output=True, text=True, check=True).stdout
    verbs = set(re.findall(r"^  ([a-z]+) {2,}", helped.split("Subcommands:")[1], re.M))
    found.update(f"{verb}: not tried" for verb in verbs - seen - {"tour", "audit"})
    print("\n".join(sorted(found)))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
