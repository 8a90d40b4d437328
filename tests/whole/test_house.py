"""Rules of the house that a reader relies on: the light core, no unsafe loading."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from divopd import METHODS

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "divopd"
OURS = sorted(path for name in ("src", "examples", "benchmarks", "scripts") for path in (ROOT / name).rglob("*.py"))
HEAVY = {"torch", "transformers", "tokenizers", "safetensors", "matplotlib", "rich", "pydantic", "yaml", "ray", "vllm"}
FORBIDDEN_MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "joblib"}
FORBIDDEN_CALLS = {"eval", "exec", "torch.load", "torch.save", "yaml.load", "np.load", "numpy.load", "os.system"}


def heavy_imports(*modules: str) -> str:
    """The heavy packages that a new process has loaded once it has imported these modules."""
    code = f"import sys, {', '.join(modules)}\nprint(*sorted({HEAVY} & set(sys.modules)))"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def test_the_core_is_light() -> None:
    """Composers, methods, metrics, records, store, replay and synth import no torch: other frameworks can use them."""
    core = ("composers", "methods", "curricula", "metrics", "records", "store", "replay", "synth", "audits.ledger")
    assert heavy_imports("divopd", *(f"divopd.{name}" for name in core)) == ""


def test_the_training_loop_needs_no_torch() -> None:
    """Nor the seams it is written against; of the heavy packages, its configuration needs two."""
    assert heavy_imports("divopd.pipeline.training", "divopd.pipeline.world", "divopd.learner") == "pydantic yaml"


def test_no_name_of_a_method_is_compared() -> None:
    """What a method does is in its object: code that asks for its name would miss the next method."""
    found = [
        f"{path.relative_to(SOURCE)}:{node.lineno}"
        for path in sorted(SOURCE.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Compare)
        for side in (node.left, *node.comparators)
        for part in (side.elts if isinstance(side, ast.Tuple | ast.List | ast.Set) else [side])
        if isinstance(part, ast.Constant) and part.value in METHODS
    ]
    assert found == []


@pytest.mark.parametrize("path", OURS, ids=lambda path: str(path.relative_to(ROOT)))
def test_nothing_loads_code_from_data(path: Path) -> None:
    """No pickle in any form, no eval, no remote code: package, examples, benchmarks, scripts."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names = {(node.module or "").partition(".")[0]}
        else:
            names = set()
        assert not names & FORBIDDEN_MODULES
        if isinstance(node, ast.Call):
            assert ast.unparse(node.func) not in FORBIDDEN_CALLS
            for keyword in node.keywords:
                unsafe = keyword.arg in ("trust_remote_code", "allow_pickle")
                assert not (unsafe and getattr(keyword.value, "value", True))
