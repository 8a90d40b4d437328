"""Bytes that one rank of the learner holds at the worst moment of an update, part by part.

That moment is in the backward pass: in a feed-forward layer, with rows as long as the paper's; with shorter ones where
the head's gradients of two chunks of logits are summed, or at the end, where those of embedding and head are. `divopd
bench memory` holds parameters, gradients and activations against PyTorch's own memory tracker. The workspace of CUDA's
kernels and libraries comes on top; nobody has measured it here.
"""

from math import ceil

from divopd.models.logit_chunks import logit_chunks
from divopd.models.model_files import ModelFacts

ADAM_BYTES = 8  # two moments in float32
GRADIENT_BYTES = LOGIT_BYTES = 4
COMPUTED_BYTES = {"float32": 4, "bfloat16": 2}


def learner_bytes(
    student: ModelFacts,
    *,
    ranks: int,
    tokens: int,
    scored: int,
    compute: str,
    recompute: bool,
    device: str,
    width_bytes: int = 4,
    trained: int | None = None,
) -> dict[str, int]:
    """One micro-batch on each rank, of so many tokens and `scored` of them; `trained` parameters, or all of them."""
    steps = student.parameters if trained is None else trained
    width = COMPUTED_BYTES[compute]
    kept, passing = _layer_bytes(student, width)
    read = tokens * student.layers * (student.hidden * width if recompute else kept)
    logits, heads = _logits(student, scored, device=device)
    said = student.hidden * (tokens * (4 + 2 * width) + scored * width)  # by the last layer: as norms keep their inputs
    moments = [
        (_in_a_layer(student, width, ranks), read + tokens * (passing + recompute * kept)),
        (_in_the_head(student, width, ranks), read + said + logits + heads * width * _head(student)),
        (_at_the_end(student, width, ranks), 0),
    ]
    gathered, activations = max(moments, key=sum)
    return {
        "student": student.parameters * width_bytes // ranks,
        "gradient": steps * GRADIENT_BYTES // ranks,
        "AdamW": steps * ADAM_BYTES // ranks,
        "gathered weights": gathered,
        "activations": activations,
    }


def _logits(student: ModelFacts, scored: int, *, device: str) -> tuple[int, int]:
    """Bytes of logits that still wait where the head's gradients are summed, and how many of those gradients there are.

    The last chunk comes first: its gradient, that of the chunk before it, and their sum.
    """
    sizes = logit_chunks(device)
    logits = scored * student.vocabulary
    chunks = ceil(logits / sizes.at_once)
    if chunks < 2:
        return LOGIT_BYTES * logits, chunks
    return LOGIT_BYTES * min(sizes.kept, (chunks - 2) * sizes.at_once), 3


# What a rank holds of the others' weights, and of gradients on their way to them. Embedding and head stay gathered. On
# one rank bfloat16 is autocast's: a copy of every weight.


def _in_a_layer(student: ModelFacts, width: int, ranks: int) -> int:
    """A layer and the next one are gathered, the gradient of the one before is being summed, the head has its own."""
    if ranks == 1:
        return _copies(student, width)
    return width * (student.embeddings + 2 * _layer(student) + _head(student)) + GRADIENT_BYTES * _layer(student)


def _in_the_head(student: ModelFacts, width: int, ranks: int) -> int:
    """The last layer is gathered by then."""
    return _copies(student, width) if ranks == 1 else width * (student.embeddings + _layer(student))


def _at_the_end(student: ModelFacts, width: int, ranks: int) -> int:
    """The gradients of embedding and head: if these share their weights, both and their sum; else both in float32."""
    if ranks == 1:
        return _copies(student, width)
    if student.embeddings == _head(student):
        return 4 * width * student.embeddings + GRADIENT_BYTES * _layer(student)
    return (width + GRADIENT_BYTES) * student.embeddings + width * _head(student)


def _copies(student: ModelFacts, width: int) -> int:
    return 0 if width == COMPUTED_BYTES["float32"] else student.parameters * width


def _layer(student: ModelFacts) -> int:
    return (student.parameters - student.embeddings) // student.layers


def _head(student: ModelFacts) -> int:
    return student.vocabulary * student.hidden


# ──────────────────────────────────────────────────────────────────────────────────────────────────────────────────


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
