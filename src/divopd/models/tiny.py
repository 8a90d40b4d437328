"""The embedded models: a Qwen3 of about a million parameters with its own small tokenizer.

Both are in the ordinary Hugging Face format, so the code that serves them serves a 1.5B model. The tokenizer has every
word of the environment's text as one token and spells all other text in bytes: nothing is unknown, and decoding gives
the text back exactly. Four control tokens frame the conversation; text that merely looks like one is spelled out when
special tokens are disabled, as they are for everything an environment says.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

PAD, SEE, ACT, END = CONTROL_TOKENS = ("<|pad|>", "<|see|>", "<|act|>", "<|end|>")

# what the environment says follows <|see|>, what the agent says stands between <|act|> and <|end|>
CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{%- if message.role == 'assistant' -%}{{ '<|act|>' + message.content + '<|end|>' }}"
    "{%- else -%}{{ '<|see|>' + message.content }}{%- endif -%}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '<|act|>' }}{%- endif -%}"
)
_WORDS = r" ?[^\W\d_]+| ?\d+| ?[^\w\s]|_|\s"  # a word, a number or a mark, each with the space before it


@dataclass(frozen=True)
class TinySize:
    """The shape of a tiny model; the default has about 0.7 million parameters, so that two of them fit into 10 MB."""

    hidden: int = 128
    layers: int = 4
    heads: int = 4
    key_value_heads: int = 4
    feed_forward: int = 256
    context: int = 4096


def build_tokenizer(texts: Iterable[str], *, min_count: int = 2) -> "PreTrainedTokenizerFast":
    """A tokenizer with one token for each word that the texts hold at least `min_count` times.

    The same texts give the same tokenizer on any machine, in whatever order they come.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    split = pre_tokenizers.Split(Regex(_WORDS), behavior="isolated")
    in_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    words = pre_tokenizers.Sequence([split, in_bytes])
    counts = Counter(word for text in texts for word, _ in words.pre_tokenize_str(text))
    frequent = sorted((word for word, count in counts.items() if count >= min_count), key=lambda w: (-counts[w], w))
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    entries = dict.fromkeys([*CONTROL_TOKENS, *letters, *frequent])
    vocabulary = {entry: number for number, entry in enumerate(entries)}

    # no merges: a word in the vocabulary is taken whole (ignore_merges), any other stays in bytes
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], ignore_merges=True))
    tokenizer.pre_tokenizer = words  # pyright: ignore[reportAttributeAccessIssue]
    tokenizer.decoder = decoders.ByteLevel()  # pyright: ignore[reportAttributeAccessIssue]
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=END,
        additional_special_tokens=[SEE, ACT],
        clean_up_tokenization_spaces=False,
    )
    wrapped.chat_template = CHAT_TEMPLATE
    return wrapped


def build_model(tokenizer: "PreTrainedTokenizerFast", *, seed: int, size: TinySize | None = None) -> "Qwen3ForCausalLM":
    """A new model for the tokenizer, with random weights that depend on the seed alone."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    size = size or TinySize()
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=size.hidden,
        intermediate_size=size.feed_forward,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        num_key_value_heads=size.key_value_heads,
        head_dim=size.hidden // size.heads,
        max_position_embeddings=size.context,
        tie_word_embeddings=True,
        pad_token_id=cast(int | None, tokenizer.pad_token_id),
        eos_token_id=cast(int | None, tokenizer.eos_token_id),
        bos_token_id=None,
    )
    with torch.random.fork_rng():  # the caller's random numbers stay as they are
        torch.manual_seed(seed)
        return Qwen3ForCausalLM(config)


def save_model(folder: Path | str, model: "Qwen3ForCausalLM", tokenizer: "PreTrainedTokenizerFast") -> None:
    """Save both in the ordinary format; AutoModelForCausalLM and AutoTokenizer load them offline."""
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
