"""The rules of dependency, read from the source itself."""

import ast
import builtins
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import dose_ood

ROOT = Path(dose_ood.__file__).parent
LAYERS = (
    ("errors",),
    ("noise",),
    ("storage",),
    ("zoo",),
    ("columns", "statistics", "tables"),
    ("data",),
    ("models",),
    ("muon",),
    ("recipes",),
    ("measure", "runs", "train"),
    ("decision",),
    ("density",),
    ("theory",),
    ("detector",),
    ("guard",),
    ("export",),
    ("benchmark",),
    ("study",),
    ("plots",),
    ("report",),
    ("engines", "service"),
    ("terminal",),
    ("cli", "__main__"),
)
RANK = {part: rank for rank, layer in enumerate(LAYERS) for part in layer}
ONLY_IN = {
    "fastapi": {"service"},
    "matplotlib": {"plots"},
    "numpy.random": {"noise", "data"},
    "PIL": {"data", "service"},
    "pandas": set(),
    "polars": set(),
    "prometheus_client": {"service"},
    "random": set(),
    "ray": {"engines"},
    "rich": {"cli"},
    "safetensors": {"storage"},
    "onnx": {"export"},
    "onnxruntime": set(),
    "torch": {"models", "muon", "recipes", "runs", "train", "measure", "guard", "export", "cli"},
    "starlette": {"service"},
    "typer": {"cli"},
    "uvicorn": {"service"},
}
LEFT_OR_OPTIONAL = {
    "models",
    "guard",
    "export",
    "train",
    "muon",
    "recipes",
    "runs",
    "plots",
    "report",
    "engines",
    "service",
    "cli",
    "__main__",
}
NEVER_IMPORTED = {"cloudpickle", "dill", "importlib", "joblib", "marshal", "pickle", "runpy", "shelve", "yaml"}
NEVER_USED = {
    *(f"builtins.{name}" for name in ("__import__", "breakpoint", "compile", "eval", "exec")),
    "numpy.lib.format.read_array",
    "os.system",
    "torch.load",
}

FILES = sorted(ROOT.rglob("*.py"))
each_file = pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT)))


def part_of(file: Path) -> str:
    """The layer's part that a file belongs to: `density` for density/kde.py, `` for the package's own __init__."""
    inside = file.relative_to(ROOT).with_suffix("").parts
    return "" if inside == ("__init__",) else inside[0]


@cache
def tree_of(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


def package_of(file: Path) -> list[str]:
    return ["dose_ood", *file.relative_to(ROOT).parent.parts]


def walk(tree: ast.AST) -> Iterator[ast.AST]:
    """Every node, save those under `if TYPE_CHECKING`, which never run."""
    if isinstance(tree, ast.If) and dotted(tree.test).endswith("TYPE_CHECKING"):
        return
    yield tree
    for node in ast.iter_child_nodes(tree):
        yield from walk(node)


def imported(tree: ast.AST, package: list[str]) -> dict[str, str]:
    """What each local name stands for, as a dotted path: {"np": "numpy", "generator": "dose_ood.noise.generator"}."""
    names = {}
    for node in walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.asname or alias.name: alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            origin = ".".join([*base, *([node.module] if node.module else [])])
            names |= {alias.asname or alias.name: f"{origin}.{alias.name}" for alias in node.names}
    return names


def dotted(node: ast.AST) -> str:
    if isinstance(node, ast.Name):
        return node.id
    return f"{dotted(node.value)}.{node.attr}" if isinstance(node, ast.Attribute) else "?"


def paths(tree: ast.AST, package: list[str]) -> Iterator[str]:
    """Every dotted path that source imports or reads, aliases resolved: numpy.random.PCG64, builtins.print."""
    names = imported(tree, package)
    yield from names.values()
    parts = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute | ast.Name) and id(node) not in parts:
            first, dot, rest = dotted(node).partition(".")
            if first in names or hasattr(builtins, first):
                yield names.get(first, f"builtins.{first}") + dot + rest


@cache
def used(file: Path) -> frozenset[str]:
    return frozenset(paths(tree_of(file), package_of(file)))


def is_under(path: str, module: str) -> bool:
    return path == module or path.startswith(f"{module}.")


def ours(file: Path) -> set[str]:
    """The parts of this package that a file imports."""
    origins = imported(tree_of(file), package_of(file)).values()
    inside = {origin.split(".")[1] for origin in origins if origin.startswith("dose_ood.")}
    return {part for part in inside if (ROOT / part).is_dir() or (ROOT / f"{part}.py").exists()}


def test_the_reader_of_imports_sees_every_way_to_write_one():
    source = (
        "import numpy as np\nimport a.b\nfrom .base import X as Y\nfrom .. import storage\nfrom dose_ood import cli\n"
    )
    found = imported(ast.parse(source), ["dose_ood", "density"])
    assert found == {
        "np": "numpy",
        "a.b": "a.b",
        "Y": "dose_ood.density.base.X",
        "storage": "dose_ood.storage",
        "cli": "dose_ood.cli",
    }


def test_the_reader_of_names_sees_through_aliases_and_not_into_strings():
    source = "import numpy as np\nfrom numpy import random as r\nprint(np.random.default_rng(0), r.rand(), 'eval')\n"
    found = set(paths(ast.parse(source), ["dose_ood"]))
    assert found == {"numpy", "numpy.random", "builtins.print", "numpy.random.default_rng", "numpy.random.rand"}
    local = "random = generator('name')\nrandom.normal()\n"
    assert not set(paths(ast.parse(local), ["dose_ood"]))


@each_file
def test_every_file_has_a_layer(file):
    assert part_of(file) in {"", *RANK}, "name it in LAYERS"


@each_file
def test_imports_go_one_way(file):
    part = part_of(file)
    if part:
        against = {other for other in ours(file) if RANK[other] > RANK[part]}
        assert not against, f"{part} is below {against}"


@each_file
def test_nothing_in_a_file_can_become_code(file):
    assert not {path for path in used(file) if path.split(".")[0] in NEVER_IMPORTED}
    assert not used(file) & NEVER_USED
    for node in ast.walk(tree_of(file)):
        if isinstance(node, ast.Call) and dotted(node.func).split(".")[-1] in ("load", "open_memmap"):
            allowing = {word.arg for word in node.keywords if not _is_false(word.value)}
            assert "allow_pickle" not in allowing
            assert None not in allowing, "**keywords can allow pickle"


def _is_false(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is False


@each_file
def test_only_the_command_line_prints(file):
    if part_of(file) not in ("cli", "__main__"):
        assert not {"builtins.print", "sys.stdout", "sys.stderr"} & used(file)


@each_file
def test_each_of_these_is_used_in_one_place(file):
    for module, parts in ONLY_IN.items():
        if part_of(file) not in parts:
            found = {path for path in used(file) if is_under(path, module)} - {"numpy.random.Generator"}  # a type
            assert not found, f"{module} is for {parts or 'nobody'}"


OPTIONAL = ("torch", "PIL", "matplotlib", "pandas", "polars", "fastapi", "uvicorn", "ray", "onnx")
NOT_FOR_A_LIBRARY = ("typer", "rich", "click")
NOT_INSTALLED = """
import sys
class Nowhere:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in optional:
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Nowhere())
"""


def python(*lines: str) -> str:
    command = [sys.executable, "-c", "\n".join(lines)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stderr
    return run.stdout


def test_the_package_needs_nothing_optional():
    modules = [".".join(["dose_ood", *file.relative_to(ROOT).with_suffix("").parts]) for file in FILES]
    right = [name.removesuffix(".__init__") for name in modules if not set(name.split(".")) & LEFT_OR_OPTIONAL]
    assert "dose_ood.density.registry" in right
    python(f"optional = {OPTIONAL}", NOT_INSTALLED, *(f"import {name}" for name in right))


def test_importing_the_package_imports_what_it_always_needs_and_nothing_else():
    # scikit-learn itself imports pandas and rich wherever they are installed.
    needed = python("import pyarrow, safetensors.numpy, scipy, sklearn.svm, sys", "print(*sys.modules)").split()
    loaded = python("import dose_ood, sys", "print(*sys.modules)").split()
    extra = {name.partition(".")[0] for name in {*loaded} - {*needed}} - {name.partition(".")[0] for name in needed}
    assert not extra & {*OPTIONAL, *NOT_FOR_A_LIBRARY}
    assert extra - sys.stdlib_module_names <= {"dose_ood"}
