"""Propose small changes of the sources that some test must notice.

    python tests/mutants/generate.py --seed 0

prints one JSON record a line. The same seed and sources give the same records. Those in
`skipped.jsonl` cannot change a result; the room's next one takes their place.
"""

import argparse
import ast
import itertools
import json
import random
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
SKIPPED = Path(__file__).with_name("skipped.jsonl")
# How many changes each room gets.
ROOMS = {
    "metaevo": 4,
    "metaevo/rl": 5,
    "inner_loops": 6,
    "strategies": 4,
    "metaevo/learned": 3,
    "metaevo/evaluators": 3,
    "metaevo/storage": 3,
    "metaevo/export": 3,
    "metaevo/analysis": 3,
    "metaevo/engine": 2,
    "metaevo/cli": 2,
    "metaevo/envs": 1,
    "searches": 1,
}
# Pictures, layout of terminals, and what only `make test-system` runs.
OTHER_FILES = re.compile(
    r"plots/|figures|training_curve|rendering|help\.py|findings\.py|doctor\.py"
    r"|/ray|distributed|_messages\.py|jumanji|navix|brax|wandb|onnx"
)
OTHER_NAMES = re.compile(
    r"time_?out|seconds|width|columns|color|size|font|alpha|dpi|indent|stacklevel"
    r"|__all__|version|strict",
    re.IGNORECASE,
)
# Calls whose arguments may be swapped or only fail, and whose numbers mean nothing.
SYMMETRIC = {"minimum", "maximum", "min", "max", "logical_and", "logical_or"}
SYMMETRIC |= {"isinstance", "issubclass", "getattr", "hasattr", "map", "scan"}
FREE = {"reshape", "collect", "round"}
REDUCTIONS = {"mean", "sum", "max", "min", "all", "any", "argmax", "argmin", "std"}
FLIPPED = {ast.Lt: ("<", "<="), ast.LtE: ("<=", "<")}
FLIPPED |= {ast.Gt: (">", ">="), ast.GtE: (">=", ">")}
NOT_A_NUMBER = (
    ast.List
    | ast.Tuple
    | ast.Dict
    | ast.Set
    | ast.JoinedStr
    | ast.ListComp
    | ast.SetComp
)


class Source:
    """A file's bytes, addressed by nodes of its syntax tree."""

    def __init__(self, data):
        self.data = data
        self.starts = [0]
        for line in data.splitlines(keepends=True):
            self.starts.append(self.starts[-1] + len(line))

    def span(self, node):
        start = self.starts[node.lineno - 1] + node.col_offset
        return start, self.starts[node.end_lineno - 1] + node.end_col_offset

    def text(self, node):
        start, end = self.span(node)
        return self.data[start:end].decode()

    def replaced(self, edits):
        """Return whole lines, unique in the file, before and after [(node, text)]."""
        spans = sorted((*self.span(node), text) for node, text in edits)
        first, last = (
            self.data[:at].count(b"\n") for at in (spans[0][0], spans[-1][1])
        )
        start, end = self.starts[first], self.starts[last + 1] - 1
        while self.data.count(self.data[start:end]) > 1:
            first -= 1
            start = self.starts[first]
        new, at = b"", start
        for begin, stop, text in spans:
            new += self.data[at:begin] + text.encode()
            at = stop
        new += self.data[at:end]
        return self.data[start:end].decode(), new.decode()

    def with_operator(self, node, left, right, old, new):
        """Return the text of a node with another operator between two operands."""
        start, end = self.span(node)
        at = self.data.find(old.encode(), self.span(left)[1], self.span(right)[0])
        after = self.data[at + len(old) : end]
        return (self.data[start:at] + new.encode() + after).decode()


def name_of(call):
    return getattr(call.func, "attr", getattr(call.func, "id", ""))


def is_number(node):
    return isinstance(node, ast.Constant) and type(node.value) in (int, float)


def adds_numbers(node):
    def number(side):
        call = isinstance(side, ast.Call) and name_of(side) in ("set", "list", "sorted")
        text = isinstance(side, ast.Constant) and not is_number(side)
        return not call and not text and not isinstance(side, NOT_A_NUMBER)

    signs = isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub)
    return signs and number(node.left) and number(node.right)


def changes(source, node):
    """Yield (kind, [(node, text)]) of one node."""
    text = source.text
    if adds_numbers(node):
        ops = "+-" if isinstance(node.op, ast.Add) else "-+"
        other = source.with_operator(node, node.left, node.right, *ops)
        yield "sign", [(node, other)]
    minus = isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub)
    if minus and not is_number(node.operand):
        yield "sign", [(node, text(node).removeprefix("-"))]
    if isinstance(node, ast.Compare) and type(node.ops[0]) in FLIPPED:
        ops = FLIPPED[type(node.ops[0])]
        other = source.with_operator(node, node.left, node.comparators[0], *ops)
        yield "off by one", [(node, other)]
    if isinstance(node, ast.Slice):
        for bound in filter(None, (node.lower, node.upper)):
            yield "off by one", [(bound, f"{text(bound)} + 1")]
    if isinstance(node, ast.keyword) and node.arg == "axis":
        yield "axis", [(node.value, "0" if "-" in text(node.value) else "-1")]
    if is_number(node):
        value = node.value
        other = value + 1 if isinstance(value, int) else 2 * value if value else 1.0
        yield "constant", [(node, repr(other))]
    if isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield "constant", [(node, repr(not node.value))]
    if isinstance(node, ast.Call):
        name, args = name_of(node), node.args
        if name == "range":
            yield "off by one", [(args[-1], f"{text(args[-1])} - 1")]
        if name in REDUCTIONS and len(args) == 1 and text(args[0]) in ("0", "1", "-1"):
            yield "axis", [(args[0], "0" if text(args[0]) == "-1" else "-1")]
        if name == "stop_gradient":
            yield "stop_gradient", [(node.func, "")]
        for a, b in itertools.pairwise(args):
            # Of one kind: a function and its argument, swapped, only fail.
            alike = type(a) is type(b) and not isinstance(a, ast.Starred)
            if alike and name not in SYMMETRIC:
                yield "swapped", [(a, text(b)), (b, text(a))]


def nodes(node):
    """Nodes below one, without messages, annotations and what is no result."""
    targets = getattr(node, "targets", [getattr(node, "target", None)])
    names = [
        getattr(x, a, None) for x in (node, *targets) for a in ("arg", "id", "attr")
    ]
    if isinstance(node, ast.Call) and (name := name_of(node)):
        if name in FREE or name.endswith("Error"):
            return
    elif any(isinstance(name, str) and OTHER_NAMES.search(name) for name in names):
        return
    if isinstance(node, ast.Raise | ast.JoinedStr):
        return
    yield node
    for field, value in ast.iter_fields(node):
        if field not in ("annotation", "returns", "decorator_list"):
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from nodes(child)


def proposals():
    """Yield (room, kind, record) of all changes."""
    for path in sorted(ROOT.rglob("*.py")):
        name = str(path.relative_to(ROOT))
        rooms = [room for room in ROOMS if name.startswith(f"{room}/")]
        if rooms and not OTHER_FILES.search(name):
            source = Source(path.read_bytes())
            for node in nodes(ast.parse(source.data)):
                for kind, edits in changes(source, node):
                    old, new = source.replaced(edits)
                    record = {"path": name, "old": old, "new": new}
                    yield max(rooms, key=len), kind, record


def drawn(seed):
    """Yield (room, record with its kind), the kinds of each room in turn."""
    groups = {}
    for room, kind, record in proposals():
        groups.setdefault(room, {}).setdefault(kind, []).append(record)
    for room, kinds in groups.items():
        rng = random.Random(f"{seed} {room}")
        for records in kinds.values():
            rng.shuffle(records)
        while kinds:
            for kind in rng.sample(sorted(kinds), len(kinds)):
                yield room, {**kinds[kind].pop(), "kind": kind}
            kinds = {kind: records for kind, records in kinds.items() if records}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=0)
    seed = parser.parse_args().seed
    lines = SKIPPED.read_text().splitlines() if SKIPPED.exists() else []
    skipped = [json.loads(line) for line in lines]
    skipped = {tuple(r[k] for k in ("path", "old", "new")) for r in skipped}
    left = dict(ROOMS)
    for room, record in drawn(seed):
        known = tuple(record[k] for k in ("path", "old", "new")) in skipped
        if left[room] and not known:
            left[room] -= 1
            print(json.dumps(record, ensure_ascii=False))


if __name__ == "__main__":
    main()
