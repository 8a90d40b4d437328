"""Hugging Face causal language models as students and teachers.

Log probabilities are computed at the scored positions only: the vocabulary projection never sees a prompt token, and
runs in chunks, so memory grows neither with prompt length × vocabulary nor with scored tokens × vocabulary.
"""

import copy
import warnings
from collections.abc import Hashable, Iterable, Mapping
from collections.abc import Sequence as Items
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from divopd.errors import AlignmentError, InputError, MissingExtraError
from divopd.models.attention import Branches, Packed, Read, register
from divopd.models.fused import FusedDecoder, Joined
from divopd.models.generation import Generator
from divopd.models.logprobs import Scorer, hidden_states, log_softmax
from divopd.models.model_files import check_tokenizer_size, first_line, require_model
from divopd.models.optimization import Lora
from divopd.models.packing import Row, Sequence, Span, merge_rows, tokens_at_once
from divopd.models.policy import Response, Vocabulary
from divopd.models.products import speed_up
from divopd.models.trees import Node, grow_trees, passes, single_nodes
from divopd.models.weights import fill_weights, gathered_weights

DTYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16, "float16": torch.float16}


def require_device(device: str) -> None:
    """InputError if torch does not see such a device here."""
    if device.startswith("cuda") and torch.cuda.device_count() <= int(device.partition(":")[2] or 0):
        raise InputError(
            f"device {device}: torch sees {torch.cuda.device_count()} GPUs on this machine; set the device to cpu, or "
            "go to a machine that has it (divopd train CONFIG --dry-run plans for it)"
        )


class TransformersPolicy:
    """A causal language model with its tokenizer. `model` is the transformers model that checkpoints save and fill."""

    def __init__(
        self, model: Any, tokenizer: Any = None, *, max_tokens: int = 8192, forbidden: Items[int] = ()
    ) -> None:
        """`max_tokens` is how many tokens one forward pass of scoring or of reading prompts may compute.

        `forbidden` ids are never sampled, nor are those that the tokenizer does not have.
        """
        self.model = model
        self.tokenizer = tokenizer
        self.max_tokens = max_tokens
        for module in model.modules():  # the recomputed log probability must be that of the policy that acts
            if isinstance(module, nn.Dropout):
                module.p = 0.0
        _refuse_other_architectures(model)
        speed_up(model)
        self.scorer = Scorer(model, fused=FusedDecoder.of(model)).eval()
        self._vocabulary = Vocabulary(tokenizer, rows=model.config.vocab_size)
        forbidden = [id_ for id_ in {*forbidden, *self._vocabulary.unknown} if id_ < model.config.vocab_size]
        writer = FusedDecoder(model, Joined) if self.scorer.fused else None
        self._generator = Generator(model, read_at_once=max_tokens, forbidden=forbidden, fused=writer)

    @classmethod
    def load(
        cls,
        path: Path | str,
        *,
        dtype: str = "float32",
        device: str = "cpu",
        lora: Lora | None = None,
        seed: int = 0,
        max_tokens: int = 8192,
        forbidden: Items[int] = (),
    ) -> "TransformersPolicy":
        """Read a model and its tokenizer from a local folder: safetensors only, no remote code, no network.

        `seed` is of the random start of adapters.
        """
        from transformers import AutoModelForCausalLM, AutoTokenizer
        from transformers.utils import logging

        logging.disable_progress_bar()  # a bar per load would run through our own output
        folder = Path(path)
        if dtype not in DTYPES:
            raise InputError(f"dtype {dtype!r} is not known; expected one of {', '.join(DTYPES)}")
        require_model(folder)
        check_tokenizer_size(folder)
        require_device(device)
        safe = {"local_files_only": True, "trust_remote_code": False}
        try:
            model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=DTYPES[dtype], use_safetensors=True, **safe)
            tokenizer = AutoTokenizer.from_pretrained(folder, **safe)
        except Exception as error:  # the libraries raise whatever a foreign folder leads them to
            raise InputError(f"{folder}: transformers cannot load it ({first_line(error)})") from None
        adapted = _with_lora(model, lora, seed=seed).to(device)
        return cls(adapted, tokenizer, max_tokens=max_tokens, forbidden=forbidden)

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    @property
    def context_length(self) -> int | None:
        """The longest sequence that the model was made for, if its configuration says so."""
        return getattr(self.model.config, "max_position_embeddings", None)

    @property
    def stop_ids(self) -> list[int]:
        """The tokens that end a response."""
        return sorted(self._generator.stop_ids())

    def encode(self, text: str) -> list[int]:
        """Tokens of untrusted text: a chat marker inside it becomes ordinary text, never a special token."""
        return self.tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True)

    def decode(self, ids: Items[int]) -> str:
        """The text of a response, without special tokens."""
        return self.tokenizer.decode(ids, skip_special_tokens=True)

    def save(self, path: Path | str) -> None:
        """Write model and tokenizer in the ordinary Hugging Face format, adapters merged into the weights."""
        model = self.model
        if hasattr(model, "merge_and_unload"):
            model = copy.deepcopy(model).merge_and_unload()  # of a copy: the policy can still be trained
        model.save_pretrained(path)
        if self.tokenizer is not None:
            self.tokenizer.save_pretrained(path)

    @property
    def exact(self) -> bool:
        """Whether scoring finds the log probabilities of generation again, to rounding."""
        return next(self.model.parameters()).dtype in (torch.float32, torch.float64)

    def weights(self) -> Mapping[str, Tensor]:
        """The weights as they are now, on the CPU."""
        return gathered_weights(self.model)

    def fill_weights(self, weights: Mapping[str, Tensor], *, source: str) -> None:
        """Take the weights of a published version; those of another model raise a CheckpointError."""
        assert not self.pending, "new weights while responses are under way: step until they are there"
        fill_weights(self.model, weights, source=source)

    def checkpoint_activations(self) -> None:
        """Trade time for memory: layers compute their activations again in the backward pass."""
        checkpoint_activations(self.model)
        self.scorer.fused = None  # its layers are not the model's

    def logprobs(self, nodes: Items[Node], earlier: Items[Read] = ()) -> tuple[Tensor, Read]:
        """Differentiable log probabilities of one input: by node, by span, in position order; keys and values of it.

        The nodes are siblings: they go on after the same tokens, whose keys and values are `earlier`. Keys and values
        are there for what goes on from a node, so they are empty where nothing does.
        """
        for node in nodes:
            self.refuse_foreign_ids(node.ids)
            self.refuse_foreign_ids(node.targets)
        lengths = [node.tokens for node in nodes]
        starts = np.cumsum([0, *lengths[:-1]])
        plain = not earlier and not any(node.children for node in nodes)
        layout = Packed(lengths) if plain else Branches(lengths, earlier)
        index = [
            span.scored - node.start + start - 1
            for node, start in zip(nodes, starts, strict=True)
            for span in node.spans
        ]
        logprobs = self.scorer(
            self._tensor(np.concatenate([node.ids for node in nodes])),
            self._tensor(np.concatenate([np.arange(node.start, node.start + node.tokens) for node in nodes])),
            layout,
            self._tensor(np.concatenate([np.empty(0, dtype=np.int64), *index])),
            self._tensor(np.concatenate([node.targets for node in nodes])),
        )
        return logprobs, layout.read if isinstance(layout, Branches) else {}

    def trees(self, sequences: Items[Sequence], rows: Items[Row]) -> list[Node]:
        """The sequences with their common beginnings once; on a GPU, where nobody has measured it, each for itself."""
        return (grow_trees if self.device.type == "cpu" else single_nodes)(sequences, rows)

    def tokens_at_once(self, nodes: Items[Node], max_tokens: int) -> int:
        """How many tokens one input of these trees may have, where memory would allow `max_tokens`."""
        longest = max((node.tokens_to_the_end for node in nodes), default=0)
        return tokens_at_once(longest, max_tokens, device=self.device.type)

    def score(self, sequences: Items[Items[int]], spans: Items[Items[tuple[int, int]]]) -> list[list[np.ndarray]]:
        """Log probabilities of the tokens start … end - 1 of each span of each sequence, each token read once.

        So are sequences that continue one another, or begin alike: a rollout given turn by turn is read once, too.
        """
        rows = [_row(ids, span) for ids, wanted in zip(sequences, spans, strict=True) for span in wanted]
        scores = [np.empty(len(row.scored)) for row in rows]
        trees = self.trees(merge_rows(rows), rows)
        at_once = self.tokens_at_once(trees, self.max_tokens)

        def read(nodes: Items[Node], earlier: list[Read]) -> None:
            for batch in passes(nodes, at_once):
                logprobs, here = self.logprobs(batch, earlier)
                for span, values in by_span(batch, logprobs.double().cpu()):
                    scores[span.row][np.searchsorted(rows[span.row].scored, span.scored)] = values.numpy()
                for node in batch:
                    read(node.children, [*earlier, here])

        with torch.inference_mode():
            read(trees, [])
        left = iter(scores)
        return [list(islice(left, len(wanted))) for wanted in spans]

    def respond(
        self, prompts: Items[Items[int]], *, temperature: float, max_tokens: int, seeds: Items[int]
    ) -> list[Response]:
        """One response per prompt, sampled with its own seed; temperature 0 takes the likeliest token.

        Keys and values of earlier calls are kept while the weights stay the same: of a rollout's next prompt only the
        new tokens are read.
        """
        for prompt in prompts:
            self.refuse_foreign_ids(np.asarray(prompt, dtype=np.int64))
        return self._generator.respond(prompts, temperature=temperature, max_tokens=max_tokens, seeds=seeds)

    def add(self, key: Hashable, prompt: Items[int], *, temperature: float, max_tokens: int, seed: int) -> None:
        """Begin a response, which a later step returns under this key; what is asked under it again goes on with it."""
        self.refuse_foreign_ids(np.asarray(prompt, dtype=np.int64))
        self._generator.add(key, prompt, temperature=temperature, max_tokens=max_tokens, seed=seed)

    def step(self) -> list[tuple[Hashable, Response]]:
        """Write one token of every response under way; those that ended with it, by their keys."""
        return self._generator.step()

    @property
    def pending(self) -> int:
        """Responses that were added and that no step has returned."""
        return self._generator.pending

    def _tensor(self, values: np.ndarray) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(values)).to(self.device)

    def refuse_foreign_ids(self, ids: np.ndarray) -> None:
        """Raise an AlignmentError at the first id that the tokenizer does not have."""
        self._vocabulary.refuse_foreign(ids)


def checkpoint_activations(model: Any) -> None:
    """Let a transformers model compute its layers' activations again in the backward pass."""
    again = {"use_reentrant": False}
    if hasattr(model, "activation_checkpointing_enable"):  # its name since transformers 5.23
        model.activation_checkpointing_enable(activation_checkpointing_kwargs=again)
    else:
        model.gradient_checkpointing_enable(again)


def _row(ids: Items[int], span: tuple[int, int]) -> Row:
    start, end = span
    if not 1 <= start <= end <= len(ids):
        raise AlignmentError(
            f"span {start}…{end} of {len(ids)} tokens; expected 1 ≤ start ≤ end ≤ the number of tokens"
        )
    return Row(np.asarray(ids[:end], dtype=np.int64), np.arange(start, end))


def by_span(batch: Items[Node], values: Tensor) -> Iterable[tuple[Span, Tensor]]:
    """Cut what `logprobs` gave for some nodes into the spans' parts."""
    spans = [span for node in batch for span in node.spans]
    return zip(spans, values.split([len(span.scored) for span in spans]), strict=True)


def _with_lora(model: Any, lora: Lora | None, *, seed: int) -> Any:
    if lora is None:
        return model
    try:
        from peft import LoraConfig, get_peft_model
    except ImportError:
        raise MissingExtraError("peft", "lora") from None
    config = LoraConfig(r=lora.rank, lora_alpha=lora.alpha, target_modules="all-linear", task_type="CAUSAL_LM")
    with warnings.catch_warnings():  # peft 0.21 still asks by the name that transformers 5.23 deprecates
        warnings.filterwarnings("ignore", "`is_gradient_checkpointing` is deprecated", FutureWarning)
        with torch.random.fork_rng(devices=[]):  # the model is still on the CPU: the same start on any device
            torch.default_generator.manual_seed(seed)
            return get_peft_model(model, config)


@torch.no_grad()
def _refuse_other_architectures(model: Any) -> None:
    """Compare two short packed rows with the model's own forward pass of each.

    An architecture that treats its logits specially, or mixes tokens other than by attention, cannot be packed so.
    """
    rows = [torch.arange(size, device=next(model.parameters()).device) % model.config.vocab_size for size in (7, 5)]
    model.eval()
    own = log_softmax(torch.cat([model(row[None]).logits[0] for row in rows]))
    model.set_attn_implementation(register())
    positions = torch.cat([torch.arange(len(row), device=row.device) for row in rows])
    hidden = hidden_states(model, torch.cat(rows), positions, Packed([len(row) for row in rows]))
    ours = log_softmax(model.get_output_embeddings()(hidden))
    tolerance = max(1e-6, torch.finfo(model.dtype).eps ** 0.5)
    if not torch.allclose(ours, own, rtol=tolerance, atol=tolerance):
        raise InputError(
            f"{type(model).__name__} cannot be packed: its log probabilities differ from its own by "
            f"{(ours - own).abs().max():.3g}; use a plain decoder (Qwen, Llama, Mistral, SmolLM, …)"
        )
