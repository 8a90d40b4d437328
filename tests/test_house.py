"""Rules of the house that a reader relies on: the light core, no unsafe loading."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "divopd"
FORBIDDEN_MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "joblib"}
FORBIDDEN_CALLS = {"eval", "exec", "torch.load", "torch.save", "yaml.load", "np.load", "numpy.load", "os.system"}


def test_the_core_is_light() -> None:
    """Composers, validity, metrics, store, replay and synth import no torch, so that another framework can use them."""
    code = (
        "import sys, divopd, divopd.metrics, divopd.store, divopd.replay, divopd.synth, divopd.audits.ledger\n"
        "heavy = {'torch', 'transformers', 'tokenizers', 'safetensors', 'matplotlib', 'rich', 'pydantic'}\n"
        "heavy |= {'yaml', 'ray', 'vllm'}\n"
        "sys.exit(str(heavy & set(sys.modules)) if heavy & set(sys.modules) else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda p: str(p.relative_to(SOURCE)))
def test_nothing_loads_code_from_data(path: Path) -> None:
    """No pickle in any form, no eval, no unsafe YAML, no remote code: anywhere in the source."""
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
