"""Small runs on the default environment with random models: what tests of both clocks start."""

from itertools import islice
from pathlib import Path

from divopd.bootstrap.demonstrations import Slips, demonstrate, texts
from divopd.config import Config
from divopd.models.tiny import TinySize, build_model, build_tokenizer, save_model
from divopd.pipeline.begin import begin_run, go_on
from divopd.pipeline.wishes import Wishes
from divopd.prompts import style_for
from divopd.records import Observer, Observers
from divopd.store import Store

SIZE = TinySize(hidden=32, layers=1, heads=2, key_value_heads=1, feed_forward=64)


def make_models(folder: Path) -> None:
    """A student and a teacher with random weights and one tokenizer."""
    demonstrations = islice(demonstrate("alfworld-small", "expert", slips=Slips(), seed=0), 20)
    tokenizer = build_tokenizer(texts(demonstrations, style_for("alfworld-small", answer="terse")))
    for seed, name in enumerate(("student", "teacher")):
        save_model(folder / name, build_model(tokenizer, seed=seed, size=SIZE), tokenizer)


def config(models: Path, **changes: object) -> Config:
    data: dict[str, object] = {
        "method": "divopd",
        "environment": {"name": "alfworld-small", "horizon": 5},
        "prompts": {"answer": "terse", "max_prompt_tokens": 300, "actions": "unlisted"},
        "student": {"model": str(models / "student")},
        "teacher": {"model": str(models / "teacher")},
        "composer": {"batch_size": 8, "cap": 2},
        "learner": {"updates": 6, "lr": 1e-3, "checkpoint_every": 2},
        "explorer": {"rollouts_in_flight": 4, "max_response_tokens": 5},
        "evaluation": {"every": 3, "tasks": 3},
    }
    for name, value in changes.items():
        old = data.get(name)
        data[name] = {**old, **value} if isinstance(old, dict) and isinstance(value, dict) else value
    return Config.model_validate(data)


def train_small(
    folder: Path, settings: Config, *, observer: Observer | None = None, wishes: Wishes | None = None
) -> None:
    """Begin a run, or go on with it, and train it to its end."""
    if not (folder / "store.db").exists():
        begin_run(settings, folder)
    go_on(settings, folder, observer=observer or Observers(), wishes=wishes)


def outcome(folder: Path) -> tuple[str, tuple[int, ...], dict[int, float]]:
    """The digest of the whole ledger, the account, and the success rates of the evaluations by version."""
    with Store.open_read_only(folder) as store:
        assert store.account().adds_up
        rates = {version: record.success_rate for version, record in store.evaluations().items()}
        return store.batch(store.updates - 1).digest, tuple(store.account()), rates
