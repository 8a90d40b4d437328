"""The shapes of the models that the paper's settings name, as published: a dry run can do without their weights."""

from typing import Any

from divopd.models.model_files import ModelFacts

HEAD = 128  # the width of a head, in all of them
UNTIED = 3000  # models wider than this have a head of their own


def _qwen(
    layers: int,
    hidden: int,
    wide: int,
    *,
    heads: int,
    key_heads: int,
    generation: int,
    vocabulary: int = 151936,
) -> ModelFacts:
    """A Qwen decoder. Those with fewer than 5 billion parameters have no head of their own."""
    queries, keys = heads * HEAD, key_heads * HEAD
    linear = [(hidden, queries), (hidden, keys), (hidden, keys), (queries, hidden)]
    linear += [(hidden, wide), (hidden, wide), (wide, hidden)]
    small = {2: queries + 2 * keys, 3: 2 * HEAD}[generation] + 2 * hidden  # biases or norms of queries and keys; norms
    layer = sum(inputs * outputs for inputs, outputs in linear) + small
    embeddings = vocabulary * hidden * (2 if hidden > UNTIED else 1)
    return ModelFacts(
        parameters=layers * layer + embeddings + hidden,
        layers=layers,
        hidden=hidden,
        feed_forward=wide,
        cache_width=2 * keys,
        context_length={2: 32768, 3: 40960}[generation],
        vocabulary=vocabulary,
        adapter_rows=layers * sum(inputs + outputs for inputs, outputs in linear),
        query_width=queries,
        embeddings=embeddings,
        normed_queries=generation == 3,
    )


_SEVEN = _qwen(28, 3584, 18944, heads=28, key_heads=4, generation=2, vocabulary=152064)
PUBLISHED = {
    "Qwen3-1.7B": _qwen(28, 2048, 6144, heads=16, key_heads=8, generation=3),
    "Qwen3-4B": _qwen(36, 2560, 9728, heads=32, key_heads=8, generation=3),
    "Qwen2.5-1.5B-Instruct": _qwen(28, 1536, 8960, heads=12, key_heads=2, generation=2),
    "Qwen2.5-3B-Instruct": _qwen(36, 2048, 11008, heads=16, key_heads=2, generation=2),
    "Qwen2.5-7B-Instruct": _SEVEN,
    "GiGPO-Qwen2.5-7B-Instruct-ALFWorld": _SEVEN,
    "GiGPO-Qwen2.5-7B-Instruct-WebShop": _SEVEN,
    "Embodied-Planner-R1-ScienceWorld": _SEVEN,
}


def qwen_config(name: str, *, layers: int) -> Any:
    """transformers' configuration of one of them, with so many layers."""
    from transformers import Qwen2Config, Qwen3Config

    facts = PUBLISHED[name]
    shape: dict[str, Any] = {
        "num_hidden_layers": layers,
        "hidden_size": facts.hidden,
        "intermediate_size": facts.feed_forward,
        "num_attention_heads": facts.query_width // HEAD,
        "num_key_value_heads": facts.cache_width // (2 * HEAD),
        "vocab_size": facts.vocabulary,
        "max_position_embeddings": facts.context_length,
        "tie_word_embeddings": facts.hidden <= UNTIED,
    }
    return Qwen3Config(**shape, head_dim=HEAD) if facts.normed_queries else Qwen2Config(**shape)
