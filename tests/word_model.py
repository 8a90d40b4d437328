"""A student of a few thousand weights that speaks the words of recording_rooms.py, in the Hugging Face format.

It answers with one action word or more, never with a mark: so what a room hears says which tokens were sampled. Its
choice depends on the whole prompt. `sharp` scales its logits: the temperature shows in what it says.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from recording_rooms import Room

PAD, END, SEE, ACT, UNKNOWN = MARKS = ("<pad>", "<end>", "<see>", "<act>", "<unk>")
SAID = ("left", "right", "up", "down", "wait", "win")  # by the student
HELP = "help"  # said by a teacher only
WORDS = [*MARKS, *SAID, HELP, "turn", *map(str, range(40)), *Room.tasks("train"), *Room.tasks("test")]
TEMPLATE = (
    "{%- for message in messages -%}"
    "{%- if message.role == 'assistant' -%}{{ '<act>' + message.content + '<end>' }}"
    "{%- else -%}{{ '<see>' + message.content }}{%- endif -%}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '<act>' }}{%- endif -%}"
)
NEVER = 300.0  # nats below the rest, by far: training does not change it
HIDDEN = 16


def ids_of(text: str) -> list[int]:
    """Words and marks, separated by spaces, as token ids."""
    return [WORDS.index(word) if word in WORDS else WORDS.index(UNKNOWN) for word in text.split()]


def said(ids: Sequence[int]) -> str:
    """What a room hears of a response: its words without the marks."""
    return " ".join(WORDS[token] for token in ids if WORDS[token] not in MARKS)


def response_of(action: str, *, limit: int) -> list[int]:
    """The response of at most `limit` tokens in which a room heard an action: a shorter one has ended itself."""
    ids = ids_of(action)
    return ids if len(ids) == limit else [*ids, WORDS.index(END)]


def prompt_of(texts: Sequence[str], responses: Sequence[Sequence[int]]) -> list[int]:
    """The whole history as a prompt: what was seen first, then for every response what was seen after it."""
    ids = ids_of(f"{SEE} {texts[0]} {ACT}")
    for response, text in zip(responses, texts[1:], strict=True):
        ended = response[-1] == WORDS.index(END)
        ids += [*response, *ids_of("" if ended else END), *ids_of(f"{SEE} {text} {ACT}")]
    return ids


def save_model(folder: Path, *, seed: int, sharp: float = 1.0, endings: bool = True) -> Path:
    """Write the model and its tokenizer; without `endings` every response is as long as it may be."""
    tokenizer = Tokenizer(models.WordLevel({word: n for n, word in enumerate(WORDS)}, unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()  # pyright: ignore[reportAttributeAccessIssue]
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=END,
        unk_token=UNKNOWN,
        additional_special_tokens=[SEE, ACT],
        clean_up_tokenization_spaces=False,
    )
    wrapped.chat_template = TEMPLATE
    config = LlamaConfig(
        vocab_size=len(WORDS),
        hidden_size=HIDDEN,
        intermediate_size=HIDDEN,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=1024,
        tie_word_embeddings=False,
        pad_token_id=WORDS.index(PAD),
        eos_token_id=WORDS.index(END),
        bos_token_id=None,
        initializer_range=0.5,
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config)
    with torch.no_grad():
        _teach_to_speak(model, sharp=sharp, endings=endings)
    model.save_pretrained(folder)
    wrapped.save_pretrained(folder)
    return folder


def _teach_to_speak(model: LlamaForCausalLM, *, sharp: float, endings: bool) -> None:
    """Two coordinates of the hidden state are set by the last token: one is always on, one right after <act>.

    By the first, words that are no actions are never said; by the second, no response is empty.
    """
    layer: Any = model.model.layers[0]
    for part in (layer.self_attn.o_proj, layer.mlp.down_proj):
        part.weight[:2] = 0.0
    seen, said = model.model.embed_tokens.weight, model.lm_head.weight
    seen[:, 0], seen[:, 1] = 2.0, 0.0
    seen[WORDS.index(ACT), 1] = 2.0
    said *= sharp
    said[:, :2] = 0.0
    for token, word in enumerate(WORDS):
        if word not in SAID and not (word == END and endings):
            said[token, 0] = -NEVER
    said[WORDS.index(END), 1] = -NEVER


def load_model(folder: Path, weights: Path | None = None) -> LlamaForCausalLM:
    """The model of a folder, with the weights of a published version in the place of its own."""
    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32, local_files_only=True)
    if weights is not None:
        [file] = weights.glob("*.safetensors")
        model.load_state_dict(load_file(file))
    return model.eval()


def logprobs(model: LlamaForCausalLM, prompt: Sequence[int], response: Sequence[int]) -> torch.Tensor:
    """The log probability of each token of a response, by one plain forward pass; differentiable."""
    logits = model(torch.tensor([[*prompt, *response]])).logits[0, len(prompt) - 1 : -1].double()
    return torch.log_softmax(logits, -1).gather(-1, torch.tensor(response)[:, None])[:, 0]


def likelihood(model: LlamaForCausalLM, prompt: Sequence[int], response: Sequence[int], temperature: float) -> float:
    """How likely a response was, in nats, if it was sampled at a temperature."""
    with torch.no_grad():
        logits = model(torch.tensor([[*prompt, *response]])).logits[0, len(prompt) - 1 : -1].double()
    return torch.log_softmax(logits / temperature, -1).gather(-1, torch.tensor(response)[:, None]).sum().item()
