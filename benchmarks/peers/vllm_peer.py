"""vLLM on a CPU: its engine in this process, one thread, prefix cache on. Runs in .venv-vllm.

Tokens go in and out as ids; a response keeps the log probability of what was sampled. Before a round of agents its
prefix cache is emptied, as it must be when the weights change.
"""

import os

os.environ |= {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_CPU_KVCACHE_SPACE": "2",
    "OMP_NUM_THREADS": "1",
}
import torch
from answering import answer, measured
from vllm import LLM, SamplingParams

state: dict = {}


def about() -> dict:
    return {"patched": "nothing", "client": "LLM.generate, engine in the process"}


def begin(model: str, longest: int, rows: int, dtype: str) -> None:
    torch.set_num_threads(1)
    state["engine"] = LLM(
        model,
        skip_tokenizer_init=True,
        dtype=dtype,
        max_model_len=longest,
        max_num_seqs=rows,
        enable_prefix_caching=True,
        enforce_eager=True,
        disable_log_stats=True,
    )
    torch.set_num_threads(1)


def _generate(prompts: list[list[int]], settings: SamplingParams) -> list:
    return state["engine"].generate([{"prompt_token_ids": ids} for ids in prompts], settings, use_tqdm=False)


def play(prompts: list[list[int]], observations: list[list[list[int]]], tokens: int) -> dict:
    state["engine"].reset_prefix_cache()
    return measured(lambda: _play(prompts, observations, tokens))


def _play(contexts: list[list[int]], observations: list[list[list[int]]], tokens: int) -> None:
    settings = SamplingParams(
        temperature=1.0, max_tokens=tokens, min_tokens=tokens, ignore_eos=True, logprobs=0, detokenize=False
    )
    for seen in observations:
        contexts = [[*context, *new] for context, new in zip(contexts, seen, strict=True)]
        said = [one.outputs[0] for one in _generate(contexts, settings)]
        assert all(len(one.token_ids) == tokens for one in said)
        contexts = [[*context, *one.token_ids] for context, one in zip(contexts, said, strict=True)]


def score(ids: list[list[int]]) -> dict:
    state["engine"].reset_prefix_cache()
    return measured(lambda: _score(ids))


def _score(ids: list[list[int]]) -> None:
    settings = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=0, detokenize=False)
    state["scores"] = [
        [0.0, *(told[token].logprob for told, token in zip(one.prompt_logprobs[1:], tokens[1:], strict=True))]
        for one, tokens in zip(_generate(ids, settings), ids, strict=True)
    ]


def scores() -> list[list[float]]:
    return state["scores"]


answer({"about": about, "begin": begin, "play": play, "score": score, "scores": scores})
