"""vLLM as the engine of students and teachers: many sequences at once, shared prefixes read once.

The engine lives in this process, so that it ends with it. Only token ids go in and only log probabilities of the plain
distribution come out, whatever the sampling temperature is.
"""

import os
from collections.abc import Hashable, Mapping, Sequence
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from divopd.errors import InputError, MissingExtraError
from divopd.models.engine import cache_tokens
from divopd.models.model_files import load_tokenizer, read_model_facts, tensor_shapes
from divopd.models.optimization import Lora
from divopd.models.packing import Sequence as TokenSequence
from divopd.models.policy import Response, Vocabulary, score_merged
from divopd.models.vllm_adapters import Adapters, adapter_settings
from divopd.models.vllm_transfer import Receiver
from divopd.models.weights import check_alike

if TYPE_CHECKING:
    from torch import Tensor

FORBIDDEN_AT_MOST = (
    1024  # ids of one request that vLLM's sampler takes a bias for; it takes no longer list of allowed ones
)
READ_AT_ONCE = 2048  # prompt tokens of one pass: the logits of a scored prompt are in memory for all of them
HEAD = "lm_head.weight"
WIDTH_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
SURROUNDINGS = {  # of vLLM; what the user has set counts
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # an engine of its own process would outlive a role that is killed
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # several roles would be bound to the same core
    "HF_HUB_OFFLINE": "1",
}


class VllmPolicy:
    """A model of a local folder in vLLM, with its tokenizer."""

    exact = False  # other kernels score than generate

    def __init__(
        self,
        folder: Path,
        *,
        dtype: str,
        context: int,
        sequences: int,
        forbidden: Sequence[int] = (),
        tensor_parallel: int = 1,
        memory_share: float = 0.9,
        transfer: str | None = None,
        lora: Lora | None = None,
    ) -> None:
        """Memory for keys and values is that of `sequences` sequences of `context` tokens.

        It spreads over `tensor_parallel` GPUs and asks for `memory_share` of each, though it never takes more than it
        needs: vLLM does not start where so much is not free.
        `transfer` is the backend of vLLM's by which it may be sent weights (vllm_transfer.py).
        `lora`: versions are adapters on these weights, which never change (vllm_adapters.py).
        `forbidden` ids are never sampled, nor are those that the tokenizer does not have: the first 1,024 of them.
        """
        if find_spec("vllm") is None:
            raise MissingExtraError("vllm", "vllm")
        if dtype not in WIDTH_BYTES:
            raise InputError(f"dtype {dtype!r} is none of vLLM's; expected one of {', '.join(WIDTH_BYTES)}")
        facts = read_model_facts(folder)
        self.tokenizer = load_tokenizer(folder)
        longest = facts.context_length or context + 1
        self.context_length = longest - 1  # scoring always generates one token more
        self._engine = _start(
            folder,
            engine_settings(
                dtype=dtype,
                max_model_len=min(context + 1, longest),
                cache_bytes=facts.cache_bytes(cache_tokens(context, sequences), width_bytes=WIDTH_BYTES[dtype]),
                tensor_parallel=tensor_parallel,
                memory_share=memory_share,
                gpu=_has_gpu(),
            )
            | ({} if transfer is None else {"weight_transfer_config": {"backend": transfer}})
            | ({} if lora is None else adapter_settings(lora)),
        )
        self._adapters = None if lora is None else Adapters(folder, lora)
        self._keys: dict[str, Hashable] = {}  # of the responses that `add` has asked for, by vLLM's name of the request
        self._numbers = count()
        self._vocabulary, self._shapes = Vocabulary(self.tokenizer, rows=facts.vocabulary), tensor_shapes(folder)
        never = sorted(id_ for id_ in {*forbidden, *self._vocabulary.unknown} if id_ < facts.vocabulary)
        self._bias = dict.fromkeys(never[:FORBIDDEN_AT_MOST], float("-inf")) or None
        if self._tied:  # some folders have it all the same
            self._shapes.pop(HEAD, None)

    @property
    def _tied(self) -> bool:
        """Whether the head shares the embedding's weights."""
        return bool(self._engine.llm_engine.model_config.hf_config.tie_word_embeddings)

    def respond(
        self, prompts: Sequence[Sequence[int]], *, temperature: float, max_tokens: int, seeds: Sequence[int]
    ) -> list[Response]:
        """One response per prompt, sampled with its own seed; temperature 0 takes the likeliest token."""
        wishes = [self._sampling(temperature=temperature, max_tokens=max_tokens, seed=seed) for seed in seeds]
        return [_response(output) for output in self._generate(prompts, wishes)]

    def add(self, key: Hashable, prompt: Sequence[int], *, temperature: float, max_tokens: int, seed: int) -> None:
        """Begin a response, which a later step returns under this key."""
        ids = np.asarray(prompt, dtype=np.int64)
        self._vocabulary.refuse_foreign(ids)
        name = f"added-{next(self._numbers)}"
        wish = self._sampling(temperature=temperature, max_tokens=max_tokens, seed=seed)
        self._engine.llm_engine.add_request(name, {"prompt_token_ids": ids.tolist()}, wish, **self._adapter)
        self._keys[name] = key
        if self._adapters is not None:
            self._adapters.begin(name)

    def step(self) -> list[tuple[Hashable, Response]]:
        """Write one token of every response under way, or read prompts; those that ended with it, by their keys."""
        ended = [output for output in self._engine.llm_engine.step() if output.finished] if self._keys else []
        if self._adapters is not None:
            for output in ended:
                self._adapters.end(output.request_id)
        return [(self._keys.pop(output.request_id), _response(output)) for output in ended]

    @property
    def pending(self) -> int:
        """Responses that were added and that no step has returned."""
        return len(self._keys)

    def score(
        self, sequences: Sequence[Sequence[int]], spans: Sequence[Sequence[tuple[int, int]]]
    ) -> list[list[np.ndarray]]:
        """Log probabilities of the tokens start … end - 1 of each span; sequences that continue one another go once."""
        return score_merged(sequences, spans, self._read)

    def fill_weights(self, weights: "Mapping[str, Tensor]", *, source: str) -> None:
        """Take the weights of a published version, and forget all that was read with others.

        Those of another model raise a CheckpointError; then the model is as it was.
        """
        if self._adapters is not None:
            self._adapters.take(weights, shapes=self._shapes, source=source)  # as others, with caches of their own
            return
        got, expected = {n: list(t.shape) for n, t in weights.items()}, self._shapes
        check_alike(*({n: str(shape) for n, shape in each.items()} for each in (got, expected)), source=source)
        # a list: a worker of another process takes it, too
        self._engine.collective_rpc("reload_weights", kwargs={"weights_iterator": list(weights.items())})
        if self._tied:
            self._engine.apply_model(_process_head)
        if not self._engine.reset_prefix_cache():
            raise RuntimeError("vLLM keeps what it read with older weights; expected no request under way")

    @property
    def _adapter(self) -> dict[str, Any]:
        """How vLLM is told of the adapters of the version, if there are any."""
        return {} if self._adapters is None else {"lora_request": self._adapters.request}

    def receiver(self) -> Receiver:
        """Where weights that are sent to it arrive."""
        return Receiver(self._engine, settle_head=_process_head if self._tied else None)

    def _read(self, merged: list[TokenSequence]) -> list[np.ndarray]:
        """The log probabilities of each sequence's tokens; NaN where nobody wants them."""
        prompts = [sequence.ids for sequence in merged]
        chooses = bool(self._engine.llm_engine.vllm_config.use_v2_model_runner)
        wishes = [scoring_wish(sequence, chooses=chooses) for sequence in merged]
        outputs = self._generate(prompts, [_sampling_params(**wish) for wish in wishes])
        return [_scores(sequence, output) for sequence, output in zip(merged, outputs, strict=True)]

    def _sampling(self, *, temperature: float, max_tokens: int, seed: int) -> Any:
        return _sampling_params(
            temperature=temperature, max_tokens=max_tokens, seed=int(seed), logprobs=0, logit_bias=self._bias
        )

    def _generate(self, prompts: Sequence[Sequence[int] | np.ndarray], wishes: Sequence[Any]) -> list[Any]:
        assert not self.pending, "responses that were added are under way: step until they are there"
        arrays = [np.asarray(prompt, dtype=np.int64) for prompt in prompts]
        for ids in arrays:
            self._vocabulary.refuse_foreign(ids)
        return self._engine.generate(
            [{"prompt_token_ids": ids.tolist()} for ids in arrays],
            list(wishes),
            use_tqdm=False,
            **self._adapter,
        )


def scoring_wish(sequence: TokenSequence, *, chooses: bool) -> dict[str, Any]:
    """How vLLM is asked for a sequence's scores: of its own tokens, from the first one that is wanted on.

    Only its newer model runner can choose; the other one tells of every token.
    """
    wish: dict[str, Any] = {"temperature": 1.0, "max_tokens": 1}  # it always generates a token
    if not chooses:
        return wish | {"prompt_logprobs": 0}
    first = sequence.first
    wanted = sequence.ids[first:].astype(np.int32)[:, None]  # row i is about token prompt_logprob_start + i + 1
    return wish | {"prompt_logprob_token_ids": wanted, "prompt_logprob_start": first - 1}


def _scores(sequence: TokenSequence, output: Any) -> np.ndarray:
    """A log probability a token, NaN before the first that was asked for."""
    chosen = getattr(output, "prompt_token_id_logprobs", None)
    if chosen is not None:
        values = np.asarray(chosen, dtype=np.float64)[:, 0]
    else:
        values = _values(sequence.ids[1:], output.prompt_logprobs[1:])
    return np.concatenate([np.full(len(sequence.ids) - len(values), np.nan), values])


def _sampling_params(**wish: Any) -> Any:
    from vllm import SamplingParams

    return SamplingParams(detokenize=False, **wish)


def engine_settings(
    *, dtype: str, max_model_len: int, cache_bytes: int, tensor_parallel: int, memory_share: float, gpu: bool
) -> dict[str, Any]:
    """What vLLM is started with; `cache_bytes` is of all its GPUs together."""
    return {
        "dtype": dtype,
        "load_format": "safetensors",
        "trust_remote_code": False,
        "enable_prefix_caching": True,
        "logprobs_mode": "raw_logprobs",  # before the temperature, and before ids are forbidden
        "max_model_len": max_model_len,
        "kv_cache_memory_bytes": -(-cache_bytes // tensor_parallel),
        "tensor_parallel_size": tensor_parallel,
        "gpu_memory_utilization": memory_share,  # or it wants 92 % of the GPU to be free, whatever it needs
        # a prompt that is read in pieces draws its seed's numbers too early, which vLLM cannot take back on a CPU
        "enable_chunked_prefill": gpu,
        "max_num_batched_tokens": READ_AT_ONCE if gpu else max(READ_AT_ONCE, max_model_len),
        "enforce_eager": not gpu,  # on a CPU compiling takes longer than it saves
    }


def _has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


def _start(folder: Path, settings: dict[str, Any]) -> Any:
    import torch

    for name, value in {**SURROUNDINGS, "OMP_NUM_THREADS": str(torch.get_num_threads())}.items():
        os.environ.setdefault(name, value)
    from vllm import LLM

    try:
        return LLM(str(folder), **settings)
    except (ValueError, RuntimeError) as error:
        raise InputError(f"{folder}: vLLM cannot serve it ({str(error).splitlines()[0]})") from None


def _process_head(model: Any) -> None:
    """Prepare the head's weights as vLLM does after loading.

    It leaves a tied head out, because no file has it: on a CPU that goes on with its packed copy of the old weights.
    """
    model.lm_head.quant_method.process_weights_after_loading(model.lm_head)


def _response(output: Any) -> Response:
    made = output.outputs[0]
    return Response(list(made.token_ids), _values(made.token_ids, made.logprobs))


def _values(ids: Sequence[int] | np.ndarray, records: Sequence[Any]) -> np.ndarray:
    """What vLLM says of these tokens, each the only one in its record or one of a few."""
    return np.asarray([record[int(token)].logprob for token, record in zip(ids, records, strict=True)])
