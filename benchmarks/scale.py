"""Scale, on paper and in code: 8 to 1,024 explorers, batches of 64 to 4,096: store, composer and weight sync.

An explorer is a rollout in flight, as in synth.py; sixteen share an engine, as in the paper. Demand is that of the
queue model at the paper's rates: so many turns a second from each explorer, and one update every `update_seconds`. A
batch of any size is to take as long as one of 64 does: its learner has more GPUs. Capacity is measured here, on one
core, with the real store and composer; the simulated clock says what is in the queue at each update. It is processor
time, because the machine may be shared, and what a commit waits for the disk at best.

    divopd bench scale --json
    python benchmarks/scale.py docs/pictures/scale.png      measures, and draws what it measured
"""

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from divopd.config import load_config
from divopd.methods import make_composer
from divopd.models.published import PUBLISHED
from divopd.plan.forecast import largest_sample
from divopd.plan.headroom import Measured, headroom
from divopd.store import Store
from divopd.synth import PRESETS, QueueModel, mean_turns, synthesize
from divopd.turns import Rollout, Turn, group_into_rollouts

FASTEST = "scienceworld"  # of the paper's environments: the most turns from an explorer, the shortest update
COUNTED = 3  # updates of a cell: the last ones, when the queue is as full as it stays
RUN_UPDATES = 250
PROMPT_TOKENS, RESPONSE_TOKENS = 5_000, 140  # half of the longest prompt, and a thought with an action: 23 KB
TURNS = 18
ROLLOUTS_PER_ENGINE = 16
PARAMETERS = {"1.5B": 1.54e9, "7B": 7.62e9}  # the smallest and the largest student
PAPER = ("alfworld-1.7b", "alfworld-4b", "webshop-3b", "webshop-7b", "scienceworld-1.5b", "scienceworld-3b")
MACHINES = ("8xh100", "2x8xh100", "4x8xh100")
BANDWIDTHS = {"10 Gbit/s": 1.25e9, "100 Gbit/s": 12.5e9, "400 Gbit/s": 50e9}  # bytes a second out of one machine


class Sizes(NamedTuple):
    explorers: tuple[int, ...]
    batch_sizes: tuple[int, ...]
    updates: int  # of a cell
    rollouts: int  # that the store's costs are measured on
    model: tuple[int, int]  # hidden size and layers of the weights that are published


FULL = Sizes((8, 32, 128, 512, 1024), (64, 256, 1024, 4096), updates=7, rollouts=12, model=(1024, 8))
QUICK = Sizes((8, 32), (64,), updates=COUNTED, rollouts=1, model=(128, 1))


def run(sizes: Sizes) -> dict:
    store = _store_costs(sizes.rollouts)
    cells = [cell for explorers in sizes.explorers for cell in _composer_cells(explorers, sizes, store)]
    most = sizes.explorers[-1]
    demand = {name: turns_per_second(model, most) for name, model in PRESETS.items()}
    slowest = max(cell["seconds_per_update"] for cell in cells if cell["explorers"] == most)
    put = 1e6 / store["put_us_per_turn"]
    live = 1e6 / sum(store[f"{stage}_us_per_turn"] for stage in ("keep", "read", "put"))
    headroom = {
        "store, puts": put / demand[FASTEST],
        "store, live path": live / demand[FASTEST],
        "composer": PRESETS[FASTEST].update_seconds / slowest,
    }
    sync = _sync_costs(sizes)
    return {
        "bench": "scale",
        "ratio": min(headroom.values()),
        "unit": f"capacity / demand of {most} explorers at the rates of {FASTEST}, the smallest of store and composer",
        "ours": live,
        "reference": demand[FASTEST],
        "detail": {
            "headroom": headroom,
            "demand_turns_per_s": demand,
            "capacity_turns_per_s": {"put": put, "live path": live},
            "store": store,
            "composer": cells,
            "sync": sync,
            "machines": _machines(
                Measured(
                    store_turns_per_s=live,
                    composer_s=max(cell["seconds_per_update"] for cell in cells if cell["batch_size"] == 64),
                    written_bytes_per_s=sync["measured_bytes_per_s"]["publish"],
                    saved_bytes_per_s=sync["measured_bytes_per_s"]["checkpoint"],
                    disk_bytes_per_s=sync["measured_bytes_per_s"]["this disk"],
                    passed_bytes_per_s=sync["measured_bytes_per_s"]["through memory"],
                )
            ),
        },
    }


def turns_per_second(model: QueueModel, explorers: int) -> float:
    """What so many explorers put into the queue."""
    turns = mean_turns(model)
    return explorers * turns / (model.rollout_seconds + turns * model.turn_seconds)


def _seconds(action: Callable[[], object], clock: Callable[[], float] = time.process_time) -> float:
    start = clock()
    action()
    return clock() - start


def _best(actions: Iterable[Callable[[], object]], clock: Callable[[], float] = time.process_time) -> float:
    """Seconds of the quickest."""
    return min(_seconds(action, clock) for action in actions)


# ── the store: what a turn costs on its way ───────────────────────────────────────────────────────────────────────


def _store_costs(count: int) -> dict[str, float]:
    """Microseconds a turn: on the live clock kept for the teacher and read by it; put into the queue; served at last.

    Every write is durable: both have one commit for the turns of a rollout.
    """
    rollouts = [_rollout(f"r{number}") for number in range(count)]
    with tempfile.TemporaryDirectory() as name, Store.create(Path(name) / "store.db") as store:
        keep = _best([lambda r=r: store.offer(r, generated_tokens=1) for r in rollouts])
        read = _best([lambda: store.unscored(1)] * count)
        put = _best([lambda r=r: store.put(r) for r in rollouts])
        batch = store.compose(make_composer("divopd"), update=0, epoch=store.begin_learner())
        serve = _best([lambda: store.batch(0)] * 3) * TURNS / len(batch.turns)
        commit = _commit_s(Path(name) / "file")
    stages = {"keep": keep + commit, "read": read, "put": put + commit, "serve": serve, "commit": commit}
    return {f"{stage}_us_per_turn": 1e6 * seconds / TURNS for stage, seconds in stages.items()}


def _commit_s(path: Path) -> float:
    """What the disk takes for a few pages that must be there, at best."""
    with path.open("wb", buffering=0) as file:

        def commit() -> None:
            file.write(bytes(2**14))
            os.fsync(file.fileno())

        return _best([commit] * 50, time.perf_counter)


def _rollout(name: str) -> Rollout:
    ids = [(7 * place) % 150_000 for place in range(PROMPT_TOKENS)]
    logprobs = [-0.1 - place / 7 for place in range(RESPONSE_TOKENS)]
    lists: dict[str, Any] = {
        "prompt_ids": ids,
        "response_ids": ids[:RESPONSE_TOKENS],
        "action_mask": [1] * RESPONSE_TOKENS,
    }
    lists |= {"student_logprobs": logprobs, "teacher_logprobs": logprobs[::-1]}
    return Rollout(name, tuple(Turn(name, number, "task", 0, **lists) for number in range(TURNS)))


# ── the composer: what an update costs before it can be trained ───────────────────────────────────────────────────


def _composer_cells(explorers: int, sizes: Sizes, store_costs: dict[str, float]) -> list[dict[str, Any]]:
    """One queue, read in batches of each size."""
    model = replace(PRESETS[FASTEST], explorers=explorers)
    cells = []
    with tempfile.TemporaryDirectory() as name:
        queue = Path(name) / "queue"
        queue.mkdir()
        with Store.create(queue / "store.db", synchronous="NORMAL") as store:
            for rollout in group_into_rollouts(synthesize(model, updates=sizes.updates, seed=0)):
                store.put(rollout, available_at=rollout.turns[-1].available_at)
        for size in sizes.batch_sizes:
            copy = shutil.copytree(queue, Path(name) / f"b{size}")
            cell = _cell(copy, size, store_costs, updates=sizes.updates)
            cells.append({"explorers": explorers, "batch_size": size} | cell)
            shutil.rmtree(copy)
    return cells


def _cell(folder: Path, size: int, store_costs: dict[str, float], *, updates: int) -> dict[str, float]:
    """Processor seconds of an update's stages in the store, once the queue is as full as it stays.

    The turns of the queue model are short: serving those of the paper's size comes on top. Counting what was spent
    looks at all turns there are: it is that of the end of a run.
    """
    stages: dict[str, list[float]] = {"wait": [], "compose": [], "count": [], "spent": []}
    with Store.open(folder) as store:
        composer, epoch = make_composer("divopd", batch_size=size), store.begin_learner()
        for update in range(updates):
            stages["wait"].append(_seconds(lambda q=update: store.rows(composer, update=q)))
            stages["compose"].append(_seconds(lambda q=update: store.compose(composer, update=q, epoch=epoch)))
            stages["count"].append(_seconds(lambda q=update: (store.decided(q), store.backlog())))
            stages["spent"].append(_seconds(store.arrived))
        rows = len(store.journal(updates - 1).selected)
    costs = {stage: median(times[-COUNTED:]) for stage, times in stages.items()}
    costs["serve"] = rows * store_costs["serve_us_per_turn"] / 1e6
    costs["spent"] *= RUN_UPDATES / updates
    named = {f"{stage}_s": seconds for stage, seconds in costs.items()}
    return {"seconds_per_update": sum(costs.values()), **named, "rows": rows}


# ── the weights: one version to every engine ──────────────────────────────────────────────────────────────────────


def _sync_costs(sizes: Sizes) -> dict[str, Any]:
    """Measured: publishing and loading here. Stated: a version in float32 from the learner's machine to all engines."""
    engines = {explorers: max(1, explorers // ROLLOUTS_PER_ENGINE) for explorers in sizes.explorers}
    return {
        "bytes_per_version": {model: 4 * parameters for model, parameters in PARAMETERS.items()},
        "measured_bytes_per_s": _publish_and_load(*sizes.model),
        "seconds_to_all_engines": {
            f"{model}, {name}": {str(n): 4 * parameters * count / bandwidth for n, count in engines.items()}
            for model, parameters in PARAMETERS.items()
            for name, bandwidth in BANDWIDTHS.items()
        },
    }


def _publish_and_load(hidden: int, layers: int) -> dict[str, float]:
    """Bytes a second of a model (100 million parameters): what one core can do, and this disk at best."""
    import torch

    from divopd.models.tiny import TinySize, build_model, build_tokenizer
    from divopd.models.weights import fill_weights, gathered_weights, named_tensors
    from divopd.pipeline.shelf import as_arrays
    from divopd.run.checkpoints import load_weights, publish_weights, save_checkpoint

    heads = hidden // 64
    size = TinySize(hidden=hidden, layers=layers, heads=heads, key_value_heads=heads // 2, feed_forward=3 * hidden)
    model = build_model(build_tokenizer(["a few words"]), seed=0, size=size)
    optimizer = torch.optim.AdamW(model.parameters())
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()  # its moments are there now
    total = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    block = os.urandom(2**20)
    with tempfile.TemporaryDirectory() as name:

        def publish(version: int) -> None:
            publish_weights(name, version, gathered_weights(model))

        def pass_on() -> None:
            """As through an object store: copied into it, and from there into an engine's weights."""
            arrays = {name: array.copy() for name, (_, _, array) in as_arrays(gathered_weights(model)).items()}
            kinds = {name: (tensor.dtype, tensor.shape) for name, tensor in named_tensors(model).items()}
            tensors = {n: torch.from_numpy(a).view(kinds[n][0]).reshape(kinds[n][1]) for n, a in arrays.items()}
            fill_weights(model, tensors, source="the object store")

        def save(update: int) -> None:
            save_checkpoint(f"{name}/checkpoints", update=update, model=model, optimizer=optimizer, state={}, keep=1)

        def write() -> None:
            """So many bytes that must be there, and nothing else."""
            with (Path(name) / "plain").open("wb", buffering=0) as file:
                for _ in range(total // len(block)):
                    file.write(block)
                os.fsync(file.fileno())

        seconds = {
            "publish": _best(lambda v=v: publish(v) for v in range(3)),
            "checkpoint": _best(lambda u=u: save(u) for u in range(3)) / 3,  # weights and two moments
            "this disk": _best([write] * 3, time.perf_counter),
            "through memory": _best([pass_on] * 3),
            "load": _best([lambda: load_weights(Path(name) / "000002", model)] * 3),
        }
    return {stage: total / spent for stage, spent in seconds.items()}


# ── the paper's settings on machines with GPUs ────────────────────────────────────────────────────────────────────


def _machines(measured: Measured) -> list[dict[str, Any]]:
    """A row for every setting, machine and part: prompts are as long as they may be."""
    rows = []
    for setting in PAPER:
        for machine in MACHINES:
            config = load_config(f"{setting}/divopd", machine=machine)
            student, teacher = (PUBLISHED[Path(part.model).name] for part in (config.student, config.teacher))
            for part in headroom(config, student, teacher, largest_sample(config), measured):
                rows.append({"setting": setting, "machine": machine} | asdict(part))
    return rows


def table(rows: Iterable[dict[str, Any]]) -> str:
    """For docs/scale.md: a line for every part, a column for every setting and machine."""
    rows = list(rows)
    columns = list(dict.fromkeys((row["setting"], row["machine"]) for row in rows))
    lines = [f"| | whence | {' | '.join(setting for setting, _ in columns)} |"]
    lines += ["|---|---|" + "--:|" * len(columns)]
    for part in dict.fromkeys(row["part"] for row in rows):
        mine = [row for row in rows if row["part"] == part]
        shown = " | ".join(_shown(row["ratio"]) for row in mine)
        lines.append(f"| {part} | {mine[0]['source']} | {shown} |")
    return "\n".join(lines)


def _shown(ratio: float) -> str:
    text = f"{ratio:.2g}" if ratio < 10 else f"{ratio:,.0f}"
    return text if ratio >= 1 else f"**{text}**"


# ── the picture ───────────────────────────────────────────────────────────────────────────────────────────────────


def draw(measured: dict[str, Any], sizes: Sizes, target: Path) -> None:
    """Three panels over the number of explorers: turns a second, seconds of an update, seconds of a sync."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 5), layout="constrained")
    turns, update, sync = figure.subplots(1, 3)
    detail, explorers = measured["detail"], sizes.explorers
    for (name, model), style in zip(PRESETS.items(), STYLES, strict=False):
        turns.plot(explorers, [turns_per_second(model, n) for n in explorers], label=f"{name} puts", **style)
    for (name, capacity), dashes in zip(detail["capacity_turns_per_s"].items(), ("--", ":"), strict=True):
        turns.axhline(capacity, color="black", linestyle=dashes, label=f"the store takes ({name})")
    turns.set(title="Store", ylabel="turns a second")
    for size, style in zip(sizes.batch_sizes, STYLES, strict=False):
        cells = [cell for cell in detail["composer"] if cell["batch_size"] == size]
        seconds = [cell["seconds_per_update"] for cell in cells]
        update.plot(explorers, seconds, label=f"B = {size:,}", **style)
    update.set(title="Composer", ylabel="seconds in the store, an update")
    for (name, seconds), style in zip(detail["sync"]["seconds_to_all_engines"].items(), STYLES, strict=True):
        sync.plot(explorers, list(seconds.values()), label=name, **style)
    sync.set(title="Weights to all engines, one by one", ylabel="seconds a version")
    for panel, name, dashes in ((update, FASTEST, "--"), (sync, FASTEST, "--"), (sync, "webshop", ":")):
        limit = PRESETS[name].update_seconds
        panel.axhline(limit, color="black", linestyle=dashes, label=f"an update takes {limit:g} s ({name})")
    for panel in (turns, update, sync):
        panel.set(xscale="log", yscale="log", xlabel="explorers (rollouts in flight)")
        panel.set_xticks(explorers, [f"{n:,}" for n in explorers], minor=False)
        panel.minorticks_off()
        panel.legend(fontsize=8, ncols=2, loc="upper center", bbox_to_anchor=(0.5, -0.16))  # below: it hides nothing
        panel.grid(alpha=0.3)
    figure.savefig(target, dpi=110)


# Okabe and Ito's colours, which colour-blind readers tell apart; the markers say it again
STYLES: list[dict[str, Any]] = [
    {"color": color, "marker": marker, "markersize": 5}
    for color, marker in zip(("#0072B2", "#E69F00", "#009E73", "#D55E00", "#56B4E9", "#CC79A7"), "osD^vP", strict=True)
]

if __name__ == "__main__":
    found = run(FULL)
    draw(found, FULL, Path(sys.argv[1]))
    for name in MACHINES:
        print(f"{name}\n{table(row for row in found['detail']['machines'] if row['machine'] == name)}\n")
