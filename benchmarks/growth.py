"""How the cost grows: ten times the turns, the model, the context, for learner, scoring, generation, store, composer.

Rows share nothing: each is a turn of a rollout of its own, with a prompt of as many tokens as the context and a
response of 24. A learner makes one update of them, a teacher scores them, and as many agents answer the prompts,
nothing remembered. The store gets rollouts of 15 turns and hands them out 64 at a time until it is empty, the composer
chooses a quarter of a pool; neither sees the model, and the composer sees no tokens. Processor seconds on one thread,
the least of the rounds, because other work on the machine only adds; the sizes take turns. The store does not wait for
the disk here. The bound is linear growth.

    divopd bench growth --json
    python benchmarks/growth.py docs/pictures/growth.png      measures, and draws what it measured
"""

import json
import math
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from divopd.composers import Candidate
from divopd.methods import make_composer
from divopd.store import Store
from divopd.turns import Rollout, Turn

RESPONSE, VOCABULARY, HEAD = 24, 4096, 32  # tokens of a response, ids, the size of an attention head
TURNS, BATCH = 15, 64  # of a rollout in the store, of a batch that is taken out of it


class Shape(NamedTuple):
    hidden: int
    layers: int


class Sizes(NamedTuple):
    """Of each axis from the smallest to the largest; where another axis is varied, the smallest counts."""

    turns: tuple[int, ...]  # rows of the models' work
    queued: tuple[int, ...]  # turns in the store, and in the composer's pool
    contexts: tuple[int, ...]  # tokens of a prompt
    shapes: tuple[Shape, ...]
    rounds: int


FULL = Sizes(
    turns=(4, 13, 40),
    queued=(10_000, 31_600, 100_000),
    contexts=(400, 1_260, 4_000),
    shapes=(Shape(128, 8), Shape(192, 12), Shape(320, 16)),
    rounds=3,
)
QUICK = Sizes(turns=(1, 2), queued=(128, 256), contexts=(8, 16), shapes=(Shape(64, 1), Shape(64, 2)), rounds=1)

Seconds = dict[str, float]  # what each part took
Curve = dict[str, Any]


def run(sizes: Sizes) -> dict:
    import torch

    torch.set_num_threads(1)
    axes = {"turns": _by_turns(sizes), "model": _by_model(sizes), "context": _by_context(sizes)}
    curves = {f"{part}, {axis}": curve for axis, parts in axes.items() for part, curve in parts.items()}
    worst = max(curves, key=lambda name: curves[name]["cost"] / curves[name]["size"])
    return {
        "bench": "growth",
        "ratio": curves[worst]["size"] / curves[worst]["cost"],
        "unit": f"growth of processor seconds, where it is furthest above that of the work ({worst})",
        "ours": curves[worst]["cost"],
        "reference": curves[worst]["size"],
        "detail": axes,
    }


def _by_turns(sizes: Sizes) -> dict[str, Curve]:
    context, shape = sizes.contexts[0], sizes.shapes[0]
    models = _curves(sizes.turns, [ModelWork(shape, turns, context).seconds for turns in sizes.turns], sizes.rounds)
    kept = [lambda turns=turns: store_seconds(turns, context) | composer_seconds(turns) for turns in sizes.queued]
    return models | _curves(sizes.queued, kept, sizes.rounds)


def _by_model(sizes: Sizes) -> dict[str, Curve]:
    works = [ModelWork(shape, sizes.turns[0], sizes.contexts[0]) for shape in sizes.shapes]
    return _curves([work.parameters for work in works], [work.seconds for work in works], sizes.rounds)


def _by_context(sizes: Sizes) -> dict[str, Curve]:
    shape, turns, queued = sizes.shapes[0], sizes.turns[0], sizes.queued[0]
    models = [ModelWork(shape, turns, context).seconds for context in sizes.contexts]
    stores = [lambda context=context: store_seconds(queued, context) for context in sizes.contexts]
    return _curves(sizes.contexts, models, sizes.rounds) | _curves(sizes.contexts, stores, sizes.rounds)


def _curves(sizes: Sequence[int], actions: Sequence[Callable[[], Seconds]], rounds: int) -> dict[str, Curve]:
    """Each part's least seconds at every size, and how many times the first the last one costs."""
    actions[0]()  # warms up
    taken = [[action() for action in actions] for _ in range(rounds)]
    curves: dict[str, Curve] = {}
    for part in taken[0][0]:
        seconds = [min(one[place][part] for one in taken) for place in range(len(sizes))]
        size, cost = sizes[-1] / sizes[0], seconds[-1] / seconds[0]
        power = math.log(cost) / math.log(size)
        curves[part] = {"size": size, "cost": cost, "power": power, "sizes": list(sizes), "processor_s": seconds}
    return curves


def _taken(action: Callable[[], Any]) -> float:
    started = time.process_time()
    action()
    return time.process_time() - started


# ── the parts ─────────────────────────────────────────────────────────────────────────────────────────────────────


class ModelWork:
    """So many rows of one context, for a model: what an update, scoring and answering take."""

    def __init__(self, shape: Shape, turns: int, context: int) -> None:
        from divopd.learner.torch_learner import TorchLearner
        from divopd.models.optimization import Optimization
        from divopd.models.transformers_policy import TransformersPolicy

        model = _model(shape, longest=context + RESPONSE)
        self.parameters = sum(parameter.numel() for parameter in model.parameters())
        self.policy = TransformersPolicy(model)
        self.learner = TorchLearner(self.policy, Optimization())
        self.turns = [_row(number, context) for number in range(turns)]

    def seconds(self) -> Seconds:
        import torch

        prompts = [list(turn.prompt_ids) for turn in self.turns]
        ids = [[*turn.prompt_ids, *turn.response_ids] for turn in self.turns]
        spans = [[(len(turn.prompt_ids), turn.tokens)] for turn in self.turns]
        learning = _taken(lambda: self.learner.update(self.turns))
        scoring = _taken(lambda: self.policy.score(ids, spans))
        torch.autograd.graph.increment_version(list(self.policy.model.parameters()))  # new weights: nothing is known
        seeds = range(len(prompts))
        answering = _taken(
            lambda: self.policy.respond(prompts, temperature=1.0, max_tokens=RESPONSE, seeds=seeds),
        )
        return {"learner": learning, "scoring": scoring, "generation": answering}


def _model(shape: Shape, *, longest: int) -> Any:
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    heads = shape.hidden // HEAD
    config = Qwen3Config(
        vocab_size=VOCABULARY, hidden_size=shape.hidden, intermediate_size=shape.hidden * 11 // 4,
        num_hidden_layers=shape.layers, num_attention_heads=heads, num_key_value_heads=heads // 2, head_dim=HEAD,
        max_position_embeddings=longest, tie_word_embeddings=True, eos_token_id=None,
    )  # fmt: skip
    model = Qwen3ForCausalLM(config)
    assert model.generation_config is not None
    model.generation_config.eos_token_id = None  # every response has its full length
    return model


def _row(number: int, context: int) -> Turn:
    random = Random(number)
    ids = [random.randrange(4, VOCABULARY) for _ in range(context + RESPONSE)]
    student, teacher = ([-random.expovariate(1.0) for _ in range(RESPONSE)] for _ in range(2))
    return Turn(
        f"r{number}", 0, "task", 0, prompt_ids=ids[:context], response_ids=ids[context:], student_logprobs=student,
        teacher_logprobs=teacher, action_mask=[1] * RESPONSE,
    )  # fmt: skip


def store_seconds(turns: int, context: int) -> Seconds:
    """Putting so many turns, and then taking all of them in batches."""
    row, composer = _row(0, context), make_composer("divopd", max_staleness=10**6, max_pending_age=10**6)
    lists = {name: getattr(row, name) for name in ("prompt_ids", "response_ids", "action_mask")}
    lists |= {name: getattr(row, name) for name in ("student_logprobs", "teacher_logprobs")}
    putting = 0.0
    with (
        tempfile.TemporaryDirectory() as folder,
        Store.create(Path(folder) / "store.db", synchronous="NORMAL") as store,
    ):
        for number in range(-(-turns // TURNS)):
            name = f"r{number}"
            rollout = Rollout(name, tuple(Turn(name, place, "task", 0, **lists) for place in range(TURNS)))
            putting += _taken(lambda rollout=rollout: store.put(rollout))
        epoch, taking = store.begin_learner(), 0.0
        for update in range(turns // BATCH):  # a batch that is kept would cost the others time
            taking += _taken(lambda update=update: store.compose(composer, update=update, epoch=epoch))
    return {"store, put": putting, "store, take": taking}


def composer_seconds(turns: int) -> Seconds:
    random = Random(0)
    pool = [
        Candidate(f"r{place // TURNS:07d}", place % TURNS, "t", 8, 8, None, random.gauss(1, 1), 200, 20)
        for place in range(turns)
    ]
    composer = make_composer("divopd", batch_size=turns // 4)
    return {"composer": _taken(lambda: composer.decide(pool, update=9))}


# ── the picture ───────────────────────────────────────────────────────────────────────────────────────────────────

# Okabe and Ito's colours, which colour-blind readers tell apart; every line is named at its end
COLOURS = {
    "learner": "#0072B2",
    "scoring": "#D55E00",
    "generation": "#009E73",
    "store, put": "#E69F00",
    "store, take": "#CC79A7",
    "composer": "#333333",
}
NOTES = {
    "turns": "rows of a batch, agents; turns in the store, in the pool",
    "model": "parameters; store and composer do not see the model",
    "context": "tokens of a prompt; the composer sees none",
}


def draw(axes: dict[str, dict[str, Curve]], target: Path) -> None:
    """A panel an axis: how many times the cost of the smallest size, over how many times that size."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 5.2), layout="constrained")
    panels = figure.subplots(1, len(axes), sharey=True)
    costs = [cost for curves in axes.values() for curve in curves.values() for cost in _costs(curve)]
    lowest, highest = min(costs), max(costs)
    for panel, (axis, curves) in zip(panels, axes.items(), strict=True):
        longest = max(curve["size"] for curve in curves.values())
        panel.plot([1, longest], [1, longest], color="0.6", linewidth=0.8, zorder=1)
        for part, curve in curves.items():
            style = {"color": COLOURS[part], "marker": "o", "markersize": 4, "linewidth": 1.8}
            panel.plot([size / curve["sizes"][0] for size in curve["sizes"]], _costs(curve), **style)
        _name_lines(panel, curves, x=longest * 1.06)
        panel.set(xscale="log", yscale="log", xlim=(0.9, longest * 4.2), ylim=(lowest / 1.15, highest * 1.25))
        panel.set_xticks([1, 3, 10], ["1×", "3×", "10×"], minor=False)
        panel.set_yticks(*_ticks(highest), minor=False)
        panel.minorticks_off()
        panel.spines[["top", "right"]].set_visible(False)
        panel.grid(alpha=0.25)
        panel.set_title(f"Ten times the {axis}", loc="left", fontweight="bold")
        panel.set_xlabel(NOTES[axis], loc="left")
    panels[0].set_ylabel("processor seconds, times those of the smallest")
    free = panels[list(axes).index("model")]  # where nothing lies above that line
    figure.draw_without_rendering()  # only then the angle is known
    style = {"fontsize": 8, "color": "0.4", "rotation": _slope(free), "rotation_mode": "anchor"}
    free.annotate("as much as the work", (3.2, 3.2), xytext=(-2, 4), textcoords="offset points", **style)
    figure.savefig(target, dpi=110)


def _costs(curve: Curve) -> list[float]:
    return [seconds / curve["processor_s"][0] for seconds in curve["processor_s"]]


def _ticks(highest: float) -> tuple[list[int], list[str]]:
    places = [place for place in (1, 3, 10, 30, 100, 300) if place <= highest * 1.25]
    return places, [f"{place}×" for place in places]


def _slope(panel: Any) -> float:
    """The angle of the line of slope 1, as it is seen."""
    (left, low), (right, high) = panel.transData.transform([(1, 1), (10, 10)])
    return math.degrees(math.atan2(high - low, right - left))


def _name_lines(panel: Any, curves: dict[str, Curve], *, x: float, apart: float = 1.16) -> None:
    """Every line's name and growth at its end, none on top of another."""
    below = 0.0
    for part in sorted(curves, key=lambda part: curves[part]["cost"]):
        cost = curves[part]["cost"]
        below = max(cost, below * apart)
        panel.text(x, below, f"{part} {cost:.1f}×", color=COLOURS[part], fontsize=9, va="center")


if __name__ == "__main__":
    found = run(FULL)
    draw(found["detail"], Path(sys.argv[1]))
    print(json.dumps(found, indent=2))
