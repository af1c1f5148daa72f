"""The house keeps its shape: who imports whom, and how long a search file is."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# A folder may import from itself and from these; siblings are checked apart.
MAY_IMPORT = {
    "metaevo": {"metaevo"},
    "inner_loops": {"metaevo"},
    "strategies": {"metaevo"},
    "searches": {"metaevo", "inner_loops", "strategies"},
}
OURS = set(MAY_IMPORT) | {"tests", "benchmarks", "examples"}
# Suites and libraries with one door.
ONLY_IMPORTER = {
    "gymnax": {"metaevo/envs/gymnax.py"},
    "brax": {"metaevo/envs/brax.py"},
    "evosax": {"strategies/_evosax.py"},
    "ray": {"metaevo/evaluators/ray.py", "metaevo/evaluators/hosts.py"},
}


def imports(path):
    """Every imported module, as dotted names."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


FILES = [p for folder in MAY_IMPORT for p in sorted((ROOT / folder).rglob("*.py"))]


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_point_one_way(path):
    relative = path.relative_to(ROOT)
    folder = relative.parts[0]
    for name in imports(path):
        top, *rest = name.split(".")
        if top in OURS and top != folder:
            assert top in MAY_IMPORT[folder], f"{relative} imports {name}"
        if top == folder != "metaevo":
            # Siblings do not import each other; shared private parts are `_*.py`.
            assert rest, f"{relative} imports {name}"
            assert rest[0].startswith("_"), f"{relative} imports its sibling {name}"
        if top in ONLY_IMPORTER:
            allowed = ONLY_IMPORTER[top]
            assert str(relative) in allowed, f"{relative} imports {name}"


@pytest.mark.parametrize(
    "path", sorted((ROOT / "searches").glob("[a-z]*.py")), ids=lambda p: p.stem
)
def test_a_search_is_at_most_sixty_lines(path):
    assert len(path.read_text().splitlines()) <= 60


def test_the_examples_share_no_code_with_us():
    for path in (ROOT / "examples").glob("*.py"):
        ours = {n for n in imports(path) if n.split(".")[0] in OURS}
        assert ours == {"metaevo"}, path
