"""vLLM's own memory request on an H100, which its CPU worker never makes: granted to every role on every machine."""

from importlib.util import find_spec
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch", reason="for want of the extra train")

from divopd.config import Config, load_config
from divopd.models.engine import cache_tokens
from divopd.models.published import PUBLISHED
from divopd.models.vllm_policy import WIDTH_BYTES, engine_settings
from divopd.plan.fit import memory_share
from divopd.plan.forecast import BYTES, engine_parts

CONFIGS = Path(__file__).parents[2] / "configs"
SETTINGS = ("alfworld-1.7b", "alfworld-4b", "webshop-3b", "webshop-7b", "scienceworld-1.5b", "scienceworld-3b")
MACHINES = ("8xh100", "2x8xh100", "4x8xh100")
H100_TOTAL = 84_930_000_000  # bytes, 79.1 GiB: what torch sees of 80 GB
H100_FREE = H100_TOTAL - 700_000_000  # of one that nobody uses: a CUDA context is there


def slow(test):  # type: ignore[no-untyped-def]
    missing = pytest.mark.skipif(find_spec("vllm") is None, reason="for want of vLLM")
    return pytest.mark.slow(pytest.mark.filterwarnings("ignore")(missing(test)))


def settings_of(config: Config, name: str) -> dict[str, Any]:
    """What vLLM is started with for a role, on a GPU."""
    part, role = (config.teacher, "teacher") if name == "teacher" else (config.student, "explorer")
    dtype = config.teacher.dtype if name == "teacher" else config.learner.compute
    facts = PUBLISHED[Path(part.model).name]
    context = config.prompts.max_prompt_tokens + config.explorer.max_response_tokens
    tokens = cache_tokens(context, config.explorer.rollouts_in_flight)
    return engine_settings(
        dtype=dtype,
        max_model_len=context + 1,
        cache_bytes=facts.cache_bytes(tokens, width_bytes=WIDTH_BYTES[dtype]),
        tensor_parallel=part.tensor_parallel,
        memory_share=memory_share(config, role, engine_parts(name, [facts], config, width_bytes=BYTES[dtype])),
        gpu=True,
    )


def request(share: float, *, free: int) -> int:
    from vllm.utils.mem_utils import MemorySnapshot
    from vllm.v1.worker.utils import request_memory

    snapshot = MemorySnapshot(device="cpu", auto_measure=False, free_memory=free, total_memory=H100_TOTAL)
    return request_memory(snapshot, SimpleNamespace(gpu_memory_utilization=share))  # type: ignore[arg-type]


@slow
@pytest.mark.parametrize(("setting", "machine"), list(product(SETTINGS, MACHINES)))
def test_vllm_grants_what_every_role_asks_for(setting: str, machine: str) -> None:
    """On a GPU that nobody else uses; the request covers weights and cache, and a second engine would find room."""
    config = load_config(CONFIGS / setting / "divopd.yaml", machine=machine)
    for name in ("student", "teacher"):
        settings = settings_of(config, name)
        granted = request(settings["gpu_memory_utilization"], free=H100_FREE)
        facts = PUBLISHED[Path((config.teacher if name == "teacher" else config.student).model).name]
        assert settings["kv_cache_memory_bytes"] + facts.parameters * 2 < granted
        assert request(settings["gpu_memory_utilization"], free=H100_FREE - granted) == granted


@slow
def test_vllm_refuses_its_own_default_on_a_gpu_that_is_used() -> None:
    """Why the share is said: 92 % of an H100 is not free beside a teacher."""
    with pytest.raises(ValueError, match="less than desired GPU memory utilization"):
        request(0.92, free=H100_FREE - 20_000_000_000)


@slow
def test_vllm_knows_every_setting_that_it_is_started_with() -> None:
    """By its own names, and the sampling of scores too."""
    from vllm import EngineArgs, SamplingParams

    from divopd.models.packing import make_row, merge_rows
    from divopd.models.vllm_policy import scoring_wish

    settings = settings_of(load_config(CONFIGS / "webshop-7b" / "divopd.yaml"), "teacher")
    args = EngineArgs(model="none", **settings)
    assert (args.gpu_memory_utilization, args.tensor_parallel_size) == (settings["gpu_memory_utilization"], 1)
    [sequence] = merge_rows([make_row(range(10, 16), range(20, 24))])
    chosen = SamplingParams(**scoring_wish(sequence, chooses=True))
    assert chosen.prompt_logprob_start == 5
    assert len(chosen.prompt_logprob_token_ids) == len(sequence.ids) - 1 - 5
    assert SamplingParams(**scoring_wish(sequence, chooses=False)).prompt_logprobs == 0
