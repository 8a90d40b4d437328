"""A Python function as a program: `python -m divopd.environments.programs.called FILE.py:function`.

The function gets the task, a dictionary with its `id`, and returns whether it succeeded: True or False, a dictionary
with `success` and `reward`, or None, which means that it has written OUTCOME_FILE itself or has failed.
"""

import json
import os
import sys
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

from divopd.environments.programs.process import OUTCOME_FILE, TASK_FILE


def main(path: str) -> None:
    where, _, name = path.rpartition(":")
    sys.path.insert(0, str(Path(where).resolve().parent if where.endswith(".py") else Path.cwd()))
    function = getattr(_module(where), name)
    said = function(json.loads(Path(os.environ[TASK_FILE]).read_text(encoding="utf-8")))
    if said is not None:
        outcome = said if isinstance(said, dict) else {"success": bool(said)}
        Path(os.environ[OUTCOME_FILE]).write_text(json.dumps(outcome), encoding="utf-8")


def _module(where: str) -> Any:
    if not where.endswith(".py"):
        return import_module(where)
    spec = spec_from_file_location(Path(where).stem, where)
    assert spec is not None  # the name ends in .py
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    main(sys.argv[1])
