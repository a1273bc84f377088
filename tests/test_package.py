"""What importing lossguard costs and gives, and which modules may import what."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

import lossguard

ROOT = Path(lossguard.__file__).resolve().parent.parent
HEAVY = ("numpy", "platformdirs", "rich", "scipy", "torch", "transformers", "typer")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
ENTRY_POINTS = {
    f"{group}: {name}": target
    for group, targets in {"scripts": PROJECT["scripts"], **PROJECT["entry-points"]}.items()
    for name, target in targets.items()
}
PLUGINS_OF_SERVERS = ("sglang_plugin", "vllm_plugin")
"""They import servers that live in environments of their own (tests/servers/test_w12_plugins.py runs them there)."""
CLIENT_FOLDERS = ("fixtures", "kernels", "mechanisms", "suites")


def modules_after(statement: str) -> set[str]:
    """The names of all modules that a fresh interpreter holds after a statement."""
    program = (
        f"import json, sys\nsys.path.insert(0, {str(ROOT)!r})\n{statement}\nprint(json.dumps(sorted(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT)
    return set(json.loads(done.stdout))


@pytest.mark.parametrize(
    "statement",
    [
        "import lossguard",
        "import lossguard; lossguard.Verdict",
        "import lossguard; lossguard.load_config",
        "import lossguard; lossguard.Plan",
        "import lossguard; lossguard.GateResult",
    ],
)
def test_light_names_import_nothing_heavy(statement: str) -> None:
    found = modules_after(statement)
    assert "lossguard" in found
    assert not found & set(HEAVY)


def test_the_probe_sees_a_heavy_import() -> None:
    assert "numpy" in modules_after("import lossguard, numpy")


def test_engines_and_checks_are_not_imported_with_the_package() -> None:
    assert {name for name in modules_after("import lossguard") if name.startswith("lossguard.")} == set()


@pytest.mark.parametrize("name", lossguard.__all__)
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(lossguard, name).__name__.rpartition(".")[2] == name


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Verdicts'"):
        _ = lossguard.Verdicts


def test_init_stays_short() -> None:
    assert len(Path(lossguard.__file__).read_text(encoding="utf-8").splitlines()) <= 30


def source_of(module: str) -> str:
    """The text of a module, which is found without importing it."""
    spec = find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).read_text(encoding="utf-8")


@pytest.mark.parametrize("target", ENTRY_POINTS.values(), ids=ENTRY_POINTS)
def test_every_entry_point_leads_somewhere(target: str) -> None:
    module, _, attribute = target.partition(":")
    if module.rpartition(".")[2] in PLUGINS_OF_SERVERS:
        names = {node.name for node in ast.parse(source_of(module)).body if isinstance(node, ast.FunctionDef)}
        assert attribute in names
        return
    loaded = import_module(module)
    assert callable(getattr(loaded, attribute)) if attribute else callable(vars(loaded)["pytest_addoption"])


def test_built_in_kinds_are_the_declared_entry_points() -> None:
    """The registries know the built-in kinds without installed metadata; both lists must say the same.

    Kinds of clients (``lossguard_mechanisms``) are found through entry points only, as anybody's are.
    """
    from lossguard.engines import registry as engines
    from lossguard.scoring import registry as scorers

    for group, built_in in (("lossguard.engines", engines.BUILT_IN), ("lossguard.scorers", scorers.BUILT_IN)):
        declared = PROJECT["entry-points"][group]
        assert {kind: target for kind, target in declared.items() if target.startswith("lossguard.")} == built_in


def test_no_client_folder_shadows_an_installed_package() -> None:
    """A folder without ``__init__.py`` never wins over an installed package of that name; one with it would."""
    assert [name for name in CLIENT_FOLDERS if (ROOT / name / "__init__.py").exists()] == []


def test_importing_kernels_at_the_root_gives_nothing_of_ours() -> None:
    program = "import kernels; print(kernels.__file__, [name for name in dir(kernels) if name[0] != '_'])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, cwd=ROOT)
    if done.returncode != 0:
        assert "ModuleNotFoundError: No module named 'kernels'" in done.stderr
    else:  # an installed package of that name, or the empty namespace of our folder
        assert done.stdout.startswith("None []") or not done.stdout.startswith(str(ROOT / "kernels"))


def imported_roots(path: Path) -> Iterator[str]:
    """Top-level names that a module imports at run time (imports for type checkers left out)."""
    pending: list[ast.AST] = [ast.parse(path.read_text(encoding="utf-8"))]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            pending += node.orelse
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield (node.module or "").partition(".")[0]
        pending += ast.iter_child_nodes(node)


@pytest.mark.parametrize("name", ["errors.py", "records.py"])
def test_records_and_errors_import_only_the_standard_library(name: str) -> None:
    foreign = set(imported_roots(ROOT / "lossguard" / name)) - set(sys.stdlib_module_names) - {"lossguard"}
    assert foreign == set()


def test_checks_do_no_input_and_no_output() -> None:
    forbidden = {"io", "json", "logging", "os", "pathlib", "shutil", "socket", "subprocess", "tempfile", "torch"}
    modules = sorted((ROOT / "lossguard" / "checks").rglob("*.py"))
    assert modules
    assert {path.name: found for path in modules if (found := set(imported_roots(path)) & forbidden)} == {}
