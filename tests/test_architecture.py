"""The rules of who may import whom, read from the source of every module; and what ends up in the wheel."""

from __future__ import annotations

import ast
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

LAYERS = (
    frozenset({"__init__"}),
    frozenset({"cli"}),
    frozenset({"bench", "integrations"}),
    frozenset({"api"}),
    frozenset({"job"}),
    frozenset({"ui", "engine", "io", "text", "model"}),
    frozenset({"protocol"}),
    frozenset({"checkpoint"}),
    frozenset({"config", "progress", "sandbox"}),
    frozenset({"core"}),
    frozenset({"errors"}),
)
"""Rooms of batchgen from the top down. A room imports rooms of lower layers alone."""

READ_ONLY = frozenset({"Mapping", "Sequence", "Collection", "Set"})
"""Annotations under which the type checker forbids changes."""

MUTABLE_CALLS = frozenset({"list", "dict", "set", "bytearray", "defaultdict", "deque", "Counter", "OrderedDict"})


@dataclass(frozen=True)
class Module:
    """One source file."""

    name: str
    source: str

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.source)

    @cached_property
    def imports(self) -> frozenset[str]:
        """Dotted names that it imports anywhere, also within functions; `from a import b` gives `a.b`."""
        found: set[str] = set()
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                found.update(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                assert not node.level, f"{self.name}: relative import"
                found.update(f"{node.module}.{alias.name}" for alias in node.names)
        return frozenset(found)

    @property
    def room(self) -> str:
        """The first name below the package: `core` for batchgen.core.step, `__init__` for batchgen itself."""
        return room_of(self.name)


def room_of(name: str) -> str:
    return f"{name}.__init__".split(".")[1]


def read_package(folder: Path) -> list[Module]:
    found = []
    for path in sorted(folder.rglob("*.py")):
        parts = path.relative_to(folder.parent).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found.append(Module(name, path.read_text(encoding="utf-8")))
    assert found, f"no modules in {folder}"
    return found


BATCHGEN = tuple(read_package(ROOT / "batchgen"))
KERNELS = tuple(read_package(ROOT / "kernels" / "batchgen_kernels"))


def internal_imports(module: Module, known: frozenset[str]) -> frozenset[str]:
    """The known modules that a module imports: of `a.b.name` the longest known beginning."""
    targets = set()
    for name in module.imports:
        while name and name not in known:
            name = name.rpartition(".")[0]
        targets.add(name)
    return frozenset(targets - {""})


def layer_faults(modules: tuple[Module, ...]) -> list[str]:
    known = frozenset(module.name for module in modules)
    rank = {room: number for number, layer in enumerate(LAYERS) for room in layer}
    return [
        f"{module.name} imports {target}"
        for module in modules
        for target in sorted(internal_imports(module, known))
        if room_of(target) != module.room and rank[room_of(target)] <= rank[module.room]
    ]


def cycle(modules: tuple[Module, ...]) -> list[str]:
    known = frozenset(module.name for module in modules)
    graph: Mapping[str, frozenset[str]] = {module.name: internal_imports(module, known) for module in modules}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def importers(package: str, modules: tuple[Module, ...]) -> list[Module]:
    return [module for module in modules if any(name.split(".")[0] == package for name in module.imports)]


def environment_reads(module: Module) -> Iterator[str]:
    names = {"environ", "environb", "getenv", "getenvb", "putenv", "unsetenv"}
    for node in ast.walk(module.tree):
        by_attribute = isinstance(node, ast.Attribute) and node.attr in names and ast.unparse(node.value) == "os"
        by_import = isinstance(node, ast.ImportFrom) and node.module == "os" and names & {a.name for a in node.names}
        if by_attribute or by_import:
            yield f"{module.name}, line {node.lineno}"  # type: ignore[attr-defined]


def module_state(module: Module) -> Iterator[str]:
    """Mutable values that live as long as the module, and functions that rebind module names."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Global):
            yield f"{module.name}, line {node.lineno}: global {', '.join(node.names)}"
    for statement in module.tree.body:
        if isinstance(statement, ast.AnnAssign):
            names, value, annotation = [ast.unparse(statement.target)], statement.value, statement.annotation
            if READ_ONLY & {node.id for node in ast.walk(annotation) if isinstance(node, ast.Name)}:
                continue
        elif isinstance(statement, ast.Assign):
            names, value = [ast.unparse(target) for target in statement.targets], statement.value
        else:
            continue
        display = isinstance(value, ast.List | ast.Dict | ast.Set | ast.ListComp | ast.DictComp | ast.SetComp)
        call = isinstance(value, ast.Call) and ast.unparse(value.func).rpartition(".")[2] in MUTABLE_CALLS
        if (display or call) and names != ["__all__"]:
            yield f"{module.name}, line {statement.lineno}: {names[0]}"


def test_rooms_import_only_lower_rooms() -> None:
    assert {module.room for module in BATCHGEN} <= frozenset().union(*LAYERS)
    assert layer_faults(BATCHGEN) == []


def test_no_import_cycles_not_even_within_functions() -> None:
    assert cycle(BATCHGEN) == []
    assert cycle(KERNELS) == []


def test_core_needs_the_standard_library_alone() -> None:
    allowed = sys.stdlib_module_names | {"batchgen"}
    core = tuple(module for module in BATCHGEN if module.room in {"core", "errors"})
    assert core
    assert [(m.name, name) for m in core for name in m.imports if name.split(".")[0] not in allowed] == []


def test_torch_and_kernels_are_known_to_the_model_alone() -> None:
    assert {module.room for module in importers("torch", BATCHGEN)} <= {"model"}
    assert {module.room for module in importers("batchgen_kernels", BATCHGEN)} <= {"model"}
    assert importers("batchgen", KERNELS) == []


def test_the_environment_is_read_by_the_front_doors_alone() -> None:
    doors = {"cli", "api"}
    reads = [read for module in (*BATCHGEN, *KERNELS) if module.room not in doors for read in environment_reads(module)]
    assert reads == []


def test_modules_hold_no_mutable_state() -> None:
    assert [state for module in (*BATCHGEN, *KERNELS) for state in module_state(module)] == []


def unpickling(module: Module) -> Iterator[str]:
    """Ways to read a pickle, which runs whatever its writer wanted."""
    forbidden = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}
    yield from (f"{module.name} imports {name}" for name in module.imports if name.split(".")[0] in forbidden)
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            if called in {"torch.load", "pd.read_pickle"} or any(word.arg == "allow_pickle" for word in node.keywords):
                yield f"{module.name}, line {node.lineno}: {called}"


def test_nothing_is_unpickled() -> None:
    assert [found for module in (*BATCHGEN, *KERNELS) for found in unpickling(module)] == []
    source = "import pickle\ntorch.load(x)\nnp.load(x, allow_pickle=True)\nload(x)\n"
    assert len(list(unpickling(Module("m", source)))) == 3


@pytest.mark.parametrize(
    ("name", "source", "fault"),
    [
        ("batchgen.core.step", "import batchgen.config", "batchgen.core.step imports batchgen.config"),
        ("batchgen.text.prompt", "def f():\n from batchgen import ui", "batchgen.text.prompt imports batchgen.ui"),
        ("batchgen.job", "import batchgen", "batchgen.job imports batchgen"),
    ],
)
def test_a_wrong_import_is_found(name: str, source: str, fault: str) -> None:
    others = ("batchgen", "batchgen.config", "batchgen.ui")
    assert layer_faults((Module(name, source), *(Module(other, "") for other in others))) == [fault]


def test_a_cycle_through_a_function_is_found() -> None:
    lazy = Module("batchgen.core.a", "def f():\n    from batchgen.core import b")
    assert set(cycle((lazy, Module("batchgen.core.b", "from batchgen.core.a import f")))) == {
        "batchgen.core.a",
        "batchgen.core.b",
    }


def test_environment_and_state_are_found() -> None:
    module = Module("m", "import os\nfrom os import getenv\nx = os.environ['A']\ny = []\nz: dict[str, int] = dict()\n")
    assert list(environment_reads(module)) == ["m, line 2", "m, line 3"]
    assert list(module_state(module)) == ["m, line 4: y", "m, line 5: z"]
    assert list(module_state(Module("m", "__all__ = []\nx: Mapping[str, int] = {}\ny = frozenset()\nz = (1,)"))) == []


HEAVY = ("torch", "transformers", "tokenizers", "pyarrow", "datasets", "numpy", "huggingface_hub", "rich")


@pytest.mark.parametrize(
    "code",
    [
        "import batchgen",
        "from batchgen import Engine, Result; Engine(model='m')",
        "from batchgen.cli.main import app; app(['--help'], standalone_mode=False)",
        "from batchgen.cli.main import app; app(['run-batch', '--help'], standalone_mode=False)",
        "from batchgen.cli.main import app; app(['bench', 'throughput', '--help'], standalone_mode=False)",
        "from batchgen.bench.compare import compare",
    ],
)
def test_import_and_help_load_nothing_heavy(code: str) -> None:
    report = f"import sys; print(*sorted(set({HEAVY!r}) & sys.modules.keys()), file=sys.stderr)"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\n{report}"], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stderr.split() == []


@pytest.mark.slow
def test_the_wheel_holds_no_package_named_kernels(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path), str(ROOT)]
    built = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    assert built.returncode == 0, built.stdout + built.stderr
    (wheel,) = tmp_path.glob("*.whl")
    files = zipfile.ZipFile(wheel).namelist()
    top = {name.split("/")[0] for name in files}
    assert {name for name in top if not name.endswith(".dist-info")} == {"batchgen", "batchgen_kernels"}
    assert {"batchgen/__init__.py", "batchgen/py.typed", "batchgen_kernels/ops.py"} <= set(files)
    assert {f"batchgen/ui/report/templates/{name}" for name in ("page.html", "style.css", "script.js")} <= set(files)
