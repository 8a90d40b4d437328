"""What vLLM's engines share within a process, and how a module of tests gives it back."""

import shutil
import tempfile
from pathlib import Path


def give_back() -> None:
    """Close the ports of its process group, and remove the file by which its members found one another.

    And the folder of adapters, which goes with the process: vLLM keeps frames, and by them the engine.
    """
    from vllm.distributed import cleanup_dist_env_and_memory

    cleanup_dist_env_and_memory()
    remove_meeting_files()
    for folder in Path(tempfile.gettempdir()).glob("divopd-adapters-*"):
        shutil.rmtree(folder)


def remove_meeting_files() -> None:
    """Those by which the members of process groups found one another: an engine that is killed leaves its own."""
    for file in Path(tempfile.gettempdir()).glob("vllm_dist_*"):
        file.unlink(missing_ok=True)
