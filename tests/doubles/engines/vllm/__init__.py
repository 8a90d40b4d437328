"""Stands in for vLLM where it is not installed: notes what it is started with and asked, computes nothing."""

from types import SimpleNamespace
from typing import Any

STARTED: list[dict[str, Any]] = []
ASKED: list["SamplingParams"] = []


class SamplingParams(SimpleNamespace):
    """What a request wants."""


class LLM:
    """Says -1 nat of everything, by the newer model runner's way."""

    def __init__(self, model: str, **settings: Any) -> None:
        STARTED.append({"model": model, **settings})
        config = SimpleNamespace(tie_word_embeddings=False)
        self.llm_engine = SimpleNamespace(
            model_config=SimpleNamespace(hf_config=config), vllm_config=SimpleNamespace(use_v2_model_runner=True)
        )

    def generate(self, prompts: list[Any], wishes: list[SamplingParams], use_tqdm: bool) -> list[SimpleNamespace]:
        del prompts, use_tqdm
        ASKED.extend(wishes)
        rows = [len(wish.prompt_logprob_token_ids) for wish in wishes]
        return [SimpleNamespace(prompt_token_id_logprobs=[[-1.0]] * count) for count in rows]
