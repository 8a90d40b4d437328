"""The configuration: layers, overrides, what is filled in, and errors that name file, field, value and expectation."""

from pathlib import Path

import pytest

pytest.importorskip("torch", reason="for want of the extra train")

from divopd.composers import TopB
from divopd.config import Config, load_config
from divopd.errors import InputError
from divopd.evaluation import is_evaluated
from divopd.methods import METHODS
from divopd.models.optimization import Optimization

CONFIGS = Path(__file__).parents[2] / "configs"
PAPER = ("alfworld-1.7b", "alfworld-4b", "webshop-3b", "webshop-7b", "scienceworld-1.5b", "scienceworld-3b")
COMPARED = ("vanilla", "tcod-f2b", "turnopd", "divopd-focus", "divopd-base", "divopd", "divopd-r", "divopd-adaptive")


def write(folder: Path, **files: str) -> Path:
    """Write NAME.yaml files and return the path of the last one."""
    path = folder
    for name, text in files.items():
        path = folder / f"{name}.yaml"
        path.write_text(text, encoding="utf-8")
    return path


def refusal(path: Path, *overrides: str) -> str:
    with pytest.raises(InputError) as caught:
        load_config(path, overrides)
    return str(caught.value)


# ── the files of the project ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("path", sorted(CONFIGS.rglob("*.yaml")), ids=lambda path: str(path.relative_to(CONFIGS)))
def test_every_file_is_a_whole_configuration(path: Path, tmp_path: Path) -> None:
    """Each file under configs/ loads, has the method it is named after, and survives being stored and read again."""
    config = load_config(path)
    if path.stem in METHODS:
        assert config.method == path.stem
    assert load_config(write(tmp_path, stored=config.to_yaml())) == config


def test_every_method_of_every_setting_has_a_file() -> None:
    """A user can run every method on the default environment, and every (setting, method) pair of the paper."""
    wanted = {f"default/{method}" for method in METHODS} | {f"{s}/{m}" for s in PAPER for m in COMPARED}
    assert wanted <= {str(path.relative_to(CONFIGS).with_suffix("")) for path in CONFIGS.rglob("*.yaml")}


@pytest.mark.parametrize(
    ("setting", "cap", "recovery", "horizon", "updates", "paces", "target"),
    [
        ("alfworld-1.7b", 4, (4, 6, 0), 30, 250, (6, 5), 70),
        ("alfworld-4b", 4, (6, 6, 0), 30, 250, (6, 5), 80),
        ("webshop-3b", 5, (4, 5, 45), 15, 150, (4, 4), 60),
        ("webshop-7b", 4, (4, 4, 45), 15, 150, (4, 4), 85),
        ("scienceworld-1.5b", 4, (2, 6, 120), 30, 250, (6, 5), 65),
        ("scienceworld-3b", 5, (2, 6, 50), 30, 250, (6, 5), 85),
    ],
)
def test_settings_are_those_of_the_paper(
    setting: str,
    cap: int,
    recovery: tuple[int, int, int],
    horizon: int,
    updates: int,
    paces: tuple[int, int],
    target: int,
) -> None:
    """The numbers of specification §11, and the shared ones, are what the files say."""
    config = load_config(CONFIGS / setting / "divopd-r.yaml")
    assert config.composer.cap == cap
    assert tuple(config.recovery.model_dump().values()) == (*recovery, "budget")
    assert (config.environment.horizon, config.learner.updates) == (horizon, updates)
    curriculum = config.curriculum
    assert (curriculum.growth, curriculum.retreat, curriculum.rollouts_per_step) == (*paces, 16)
    assert config.evaluation.target == target
    shared = config.composer
    assert (shared.batch_size, shared.pool_multiplier, shared.max_staleness, shared.max_pending_age) == (64, 4, 2, 8)
    assert (config.prompts.max_prompt_tokens, config.explorer.max_response_tokens) == (10_240, 512)
    assert (config.learner.lr, config.learner.betas, config.learner.beta) == (1e-6, (0.9, 0.999), 1.0)
    assert config.student.dtype == "float32"
    assert config.learner.ranks == 2  # GPUs of the learner


def evaluations(config: Config) -> int:
    """How many a run has; the last version is evaluated in any case."""
    return sum(is_evaluated(config, version) for version in range(config.learner.updates + 1))


@pytest.mark.parametrize("setting", [*PAPER, "default", "default-live", "webshop-small", "scienceworld-short"])
def test_the_last_five_evaluations_are_the_end_of_training(setting: str) -> None:
    """24 to 49 evaluations a run, as in the paper; only its divopd-focus on ALFWorld has a quarter of them."""
    for file in (CONFIGS / setting).glob("*.yaml"):
        wanted = range(24, 50)
        if file.stem == "divopd-focus" and setting.startswith("alfworld"):
            wanted = range(10, 13)
        assert evaluations(load_config(file)) in wanted, file


@pytest.mark.parametrize("setting", PAPER)
def test_the_table_of_the_cap_has_seed_42(setting: str) -> None:
    """Its arm without a cap is a file, which differs from divopd-base with that seed in the cap alone."""
    bare = load_config(CONFIGS / setting / "divopd-base-uncapped.yaml")
    assert (bare.seed, bare.composer.cap) == (42, None)
    capped = load_config(CONFIGS / setting / "divopd-base.yaml", ["seed=42"])
    assert load_config(CONFIGS / setting / "divopd-base.yaml", ["seed=42", "composer.cap=null"]) == bare != capped


@pytest.mark.parametrize(
    ("setting", "tokens", "seconds"),
    [("default", 16_100, 3.3), ("webshop-small", 13_900, 3.3), ("scienceworld-short", 7_650, 5.15)],
)
def test_an_update_costs_by_its_tokens(setting: str, tokens: int, seconds: float) -> None:
    """Nine tenths of an update of the usual size; it takes as long as before, so that the load stays as it was."""
    costs = load_config(CONFIGS / setting / "divopd.yaml").costs
    by_tokens = tokens * costs.trained_token_s
    assert by_tokens + costs.update_s == pytest.approx(seconds, rel=0.02)
    assert by_tokens > 0.9 * seconds


@pytest.mark.parametrize("method", ["vanilla", "divopd-base"])
def test_the_stress_test_of_the_producer_load_is_the_papers(method: str) -> None:
    """150 updates with an eighth, three eighths and all of 16 rollouts; nothing else differs from the setting."""
    for load, in_flight in (("low", 2), ("medium", 6), ("high", 16)):
        config = load_config(CONFIGS / "alfworld-1.7b" / f"{method}-{load}-load.yaml")
        each = in_flight // 2
        overrides = ["learner.updates=150", "explorer.processes=2", f"explorer.rollouts_in_flight={each}"]
        assert config == load_config(CONFIGS / "alfworld-1.7b" / f"{method}.yaml", overrides)


@pytest.mark.parametrize("wrong", ["73", "0", "105"])
def test_a_target_is_a_multiple_of_five(tmp_path: Path, wrong: str) -> None:
    assert f"evaluation.target is {wrong}; expected " in refusal(write(tmp_path, a="{}"), f"evaluation.target={wrong}")


def test_an_uncapped_base_is_said_with_null() -> None:
    """`cap: null` replaces the number of the file below."""
    assert load_config(CONFIGS / "default" / "divopd-base-uncapped.yaml").composer.cap is None


# ── layers and overrides ──────────────────────────────────────────────────────────────────────────────────────────


def test_files_extend_one_another(tmp_path: Path) -> None:
    """Mappings merge key by key through any number of files; a later file and then an override win."""
    (tmp_path / "deep").mkdir()
    write(tmp_path, base="learner: {lr: 0.5, updates: 7}\nteacher: {by_task: {a: x}}\n")
    write(tmp_path / "deep", middle="extends: ../base.yaml\nlearner: {lr: 0.25}\nteacher: {by_task: {b: y}}\n")
    path = write(tmp_path / "deep", top="extends: middle.yaml\nlearner: {beta: 2}\n")
    config = load_config(path, ["learner.beta=3", "student.lora.rank=4"])
    assert (config.learner.lr, config.learner.updates, config.learner.beta) == (0.25, 7, 3.0)
    assert config.teacher.by_task == {"a": "x", "b": "y"}
    assert config.student.lora is not None
    assert config.student.lora.rank == 4


def test_override_values_are_yaml(tmp_path: Path) -> None:
    """Numbers, null, lists and words; 1e-5 is a number although YAML 1.1 takes it for a word."""
    path = write(tmp_path, a="{}")
    overrides = ["learner.lr=1e-5", "composer.cap=null", "learner.betas=[0.8, 0.9]", "method=vanilla"]
    config = load_config(path, overrides)
    assert (config.learner.lr, config.composer.cap, config.learner.betas) == (1e-5, None, (0.8, 0.9))
    assert config.method == config.composer.method == "vanilla"


def test_a_stored_configuration_reads_back_equal(tmp_path: Path) -> None:
    """to_yaml says everything: reading it gives the same configuration, whatever the versions it was made with."""
    config = load_config(
        CONFIGS / "default" / "turnopd.yaml", ["student.lora={rank: 2}", "seed=9", "prompts.history=3"]
    )
    assert load_config(write(tmp_path, stored=config.to_yaml())) == config
    assert config.resolved()["versions"]["numpy"]
    of_programs = {"command", "tasks"}  # an environment has none
    assert {name for name, value in config.resolved()["environment"].items() if value is None} == of_programs


def test_what_depends_on_the_environment_is_filled_in() -> None:
    """Horizon, evaluation and the look of prompts are the table's unless they are said."""
    shop = Config.model_validate({"environment": {"name": "webshop-small"}, "prompts": {"answer": "terse"}})
    assert (shop.environment.horizon, shop.environment.evaluation_split, shop.evaluation.tasks) == (15, "test", 128)
    assert shop.prompts.system == ""
    said = Config.model_validate({"environment": {"name": "scienceworld", "horizon": 9}, "evaluation": {"tasks": 5}})
    assert (said.environment.horizon, said.evaluation.tasks, said.prompts.actions) == (9, 5, "unlisted")
    assert "science" in said.prompts.system


def test_parts_are_what_the_pipeline_takes() -> None:
    """The learner's part is an Optimization, and the composer carries method, seed and the number of updates."""
    config = Config.model_validate({"seed": 3, "method": "top-b", "learner": {"updates": 11}})
    assert isinstance(config.learner, Optimization)
    composer = METHODS[config.method].make_composer(config.composer)
    assert type(composer) is TopB
    assert (composer.settings.method, composer.settings.seed, composer.settings.total_updates) == ("top-b", 3, 11)


# ── errors ────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("learner.lrr=1", ("learner.lrr", "did you mean 'learner.lr'")),
        ("leaner.lr=1", ("'leaner'", "did you mean 'learner'")),
        ("composer.capp=1", ("did you mean 'composer.cap'",)),
        ("prompts.histroy=full", ("did you mean 'prompts.history'",)),
        ("student.lora.rnk=3", ("did you mean 'student.lora.rank'",)),
        ("learner.lr=fast", ("learner.lr is 'fast'", "expected a valid number")),
        ("learner.updates=0", ("updates is 0", "expected more than 0")),
        ("learner.updates=many", ("learner.updates is 'many'", "expected a valid integer")),
        ("composer.cap=0", ("cap is 0", "expected 1 or more")),
        ("composer.seed=1", ("composer.seed is 1", "set seed instead")),
        ("explorer.max_backlog=0", ("explorer.max_backlog is 0", "expected greater than 0")),
        ("costs.update_s=.nan", ("costs.update_s is nan", "finite")),
        ("costs.rollout_s=0", ("costs.rollout_s is 0",)),
        ("recovery.warmup=off", ("recovery.warmup is False", "YAML reads")),
        ("method=divop", ("method", "did you mean 'divopd'")),
        ("environment.name=alfworld-smal", ("environment.name", "did you mean 'alfworld-small'")),
        ("environment.workers=many", ("environment.workers: got 'many'", "expected auto, or a whole number")),
        ("environment.max_broken=50", ("environment.max_broken is 50", "expected less than 50")),
        ("prompts.history=-1", ("history is -1", "expected full, none")),
        ("clock=fast", ("clock is 'fast'", "'simulated' or 'live'")),
        ("learner=5", ("learner is 5", "expected a mapping")),
        ("student.dtype=bfloat16", ("student.dtype is bfloat16", "expected float32")),
        ("student.device=gpu", ("student.device is 'gpu'",)),
        ("learner.lr", ("expected KEY=VALUE",)),
        ("learner..lr=1", ("expected KEY=VALUE",)),
        ("learner.lr={", ("not YAML",)),
    ],
)
def test_a_wrong_override_is_one_line_that_says_what_to_change(tmp_path: Path, override: str, words: list[str]) -> None:
    """The message names the override, the field, the value, and what was expected or the nearest known key."""
    message = refusal(write(tmp_path, a="method: vanilla\nlearner: {lr: 1}\n"), override)
    assert message.startswith(f"--set {override}")
    assert "\n" not in message
    for word in words:
        assert word in message


def test_the_file_that_said_it_is_named(tmp_path: Path) -> None:
    """Of several files, the message names the one in which the wrong value stands."""
    write(tmp_path, base="composer: {cap: 0, batch_size: 8}\nlearner: {lrr: 1}\n")
    path = write(tmp_path, top="extends: base.yaml\ncomposer: {batch_size: 9}\nlearner: {lr: 1}\n")
    assert refusal(path).startswith(f"{tmp_path / 'base.yaml'}: unknown key 'learner.lrr'")
    write(tmp_path, base="composer: {cap: 0, batch_size: 8}\n")
    assert refusal(path).startswith(f"{tmp_path / 'base.yaml'}: composer: cap is 0")
    write(tmp_path, base="composer: {cap: 1, batch_size: x}\n")
    assert load_config(path).composer.batch_size == 9


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: [", "is not YAML"),
        ("- 1\n- 2\n", "expected a mapping"),
        ("extends: [x, y]", "expected one file"),
        ("extends: other.yaml", "cannot be read"),
        ("extends: top.yaml", "circle"),
        ("1: 2", "strings"),
    ],
)
def test_a_file_that_is_no_configuration_is_refused(tmp_path: Path, text: str, words: str) -> None:
    """Whatever is in a file, the answer is one line that names it."""
    path = write(tmp_path, top=text)
    message = refusal(path)
    assert str(tmp_path) in message
    assert words in message
    assert "\n" not in message


def test_a_longer_circle_is_found(tmp_path: Path) -> None:
    """a extends b extends a."""
    message = refusal(write(tmp_path, b="extends: a.yaml", a="extends: b.yaml"))
    assert "circle" in message


def test_files_cannot_make_objects(tmp_path: Path) -> None:
    """A tag that would build a Python object is refused, not obeyed."""
    assert "is not YAML" in refusal(write(tmp_path, a="seed: !!python/object/apply:os.getcwd []"))
