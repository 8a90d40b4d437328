"""Bytes that one rank of the learner holds at the worst moment of an update, part by part.

That moment is in the backward pass through the products of a feed-forward layer. `divopd bench memory` holds
parameters, gradients and activations against PyTorch's own memory tracker. The workspace of CUDA's kernels and
libraries comes on top; nobody has measured it here.
"""

from divopd.models.model_files import ModelFacts

ADAM_BYTES = 8  # two moments in float32
GRADIENT_BYTES = 4
COMPUTED_BYTES = {"float32": 4, "bfloat16": 2}


def learner_bytes(
    student: ModelFacts,
    *,
    ranks: int,
    tokens: int,
    compute: str,
    recompute: bool,
    width_bytes: int = 4,
    trained: int | None = None,
) -> dict[str, int]:
    """With one micro-batch of so many tokens on each rank; `trained` parameters, or all of them."""
    steps = student.parameters if trained is None else trained
    return {
        "student": student.parameters * width_bytes // ranks,
        "gradient": steps * GRADIENT_BYTES // ranks,
        "AdamW": steps * ADAM_BYTES // ranks,
        "gathered weights": _gathered(student, ranks=ranks, compute=compute),
        "activations": _activations(student, tokens, compute=compute, recompute=recompute),
    }


def _gathered(student: ModelFacts, *, ranks: int, compute: str) -> int:
    """What a rank holds of the others' weights and of gradients on their way.

    Embedding and head stay gathered, a layer and the next one are; of the layer before, the gradient is being summed,
    and the head has its own. On one rank bfloat16 is autocast's: a copy of every weight.
    """
    width = COMPUTED_BYTES[compute]
    if ranks == 1:
        return 0 if compute == "float32" else student.parameters * width
    layer = (student.parameters - student.embeddings) // student.layers
    head = student.vocabulary * student.hidden
    return width * (student.embeddings + 2 * layer + head) + GRADIENT_BYTES * layer


def _activations(student: ModelFacts, tokens: int, *, compute: str, recompute: bool) -> int:
    width = COMPUTED_BYTES[compute]
    inputs = tokens * student.layers * student.hidden * width
    kept, passing = _layer_bytes(student, width)
    if recompute:
        return inputs + tokens * (kept + passing)
    return tokens * (student.layers * kept + passing)


def _layer_bytes(student: ModelFacts, width: int) -> tuple[int, int]:
    """Of a token in one layer: what its forward pass keeps, and what its backward pass has besides at its worst.

    Kept are the inputs of two norms (in float32, rounded, and scaled), queries, keys, values and outputs of attention,
    and four of the feed-forward layer; norms of queries and keys keep their inputs as well.
    """
    keys = student.cache_width // 2
    norms = 2 * (4 + 2 * width) * student.hidden
    attention = width * (3 * student.query_width + 2 * keys)
    normed = (4 + width) * (student.query_width + keys) if student.normed_queries else 0
    kept = norms + attention + normed + 4 * width * student.feed_forward
    return kept, 2 * width * (student.feed_forward + student.hidden)
