"""Student and teacher on a real vLLM: log probabilities that the learner finds again, weights replaced in place."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest

pytest.importorskip("torch", reason="for want of the extra train")
import torch

from divopd.audits.ledger import audit_ledger
from divopd.cli import main
from divopd.config import Config, load_config
from divopd.errors import AlignmentError, CheckpointError, InputError, MissingExtraError
from divopd.explorer import rows_of
from divopd.learner.torch_learner import TorchLearner
from divopd.models.model_files import model_folder
from divopd.models.openai_policy import OpenAIPolicy
from divopd.models.policy import Policy, Response
from divopd.models.transformers_policy import TransformersPolicy
from divopd.models.vllm_policy import VllmPolicy, _sampling_params
from divopd.models.weights import gathered_weights
from divopd.pipeline.models import load_actor, load_teachers
from divopd.pipeline.preflight import check_models
from divopd.pipeline.rollouts import TrainingRollouts
from divopd.prompts import Codec
from divopd.run.checkpoints import publish_weights, read_weights
from divopd.store import Store
from divopd.teacher import Away, Teachers, score_rollouts
from divopd.turns import Rollout
from vllm_engines import give_back

DEFAULT = Path(__file__).parents[2] / "configs" / "default" / "divopd.yaml"
LIVE = ["clock=live", "student.engine=vllm", "teacher.engine=vllm"]
TOLERANCE = 1e-4  # nats, in float32; what was seen is 1e-5
PROMPT = [int(token) for token in np.random.default_rng(0).integers(4, 300, 300)]
FORBIDDEN = frozenset(range(4, 300, 2))
PROMPTS = [PROMPT[n : n + 250] for n in range(12)]  # more tokens than vLLM reads at once


def slow(test):  # type: ignore[no-untyped-def]
    """Warnings of vLLM and of what it imports are not ours."""
    missing = pytest.mark.skipif(find_spec("vllm") is None, reason="for want of vLLM")
    return pytest.mark.slow(pytest.mark.filterwarnings("ignore")(missing(test)))


@pytest.fixture(scope="module", autouse=True)
def _what_engines_share() -> Iterator[None]:
    yield
    if "vllm" in sys.modules:
        give_back()


@pytest.fixture(scope="module")
def config() -> Config:
    return load_config(DEFAULT, LIVE)


@pytest.fixture(scope="module")
def student(config: Config) -> VllmPolicy:
    policy = load_actor(config)
    assert isinstance(policy, VllmPolicy)
    return policy


@pytest.fixture(scope="module")  # an engine that is gone takes what vLLM shares between engines with it
def shy_student() -> VllmPolicy:
    folder = model_folder("embedded:student")
    return VllmPolicy(folder, dtype="float32", context=600, sequences=12, forbidden=sorted(FORBIDDEN))


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, VllmPolicy]:
    """A run with the weights of one version, and vLLM with the model that was exported of it."""
    run = tmp_path_factory.mktemp("exported")
    trained = TransformersPolicy.load(model_folder("embedded:student"))
    disturb(trained)
    (run / "config.yaml").write_text(load_config(DEFAULT).to_yaml(), encoding="utf-8")
    publish_weights(run / "weights", 3, gathered_weights(trained.model))
    assert main(["export", f"{run}@3", "--model", str(run / "student")]) == 0
    return run, VllmPolicy(run / "student", dtype="float32", context=600, sequences=12)


@pytest.fixture(scope="module")
def teachers(config: Config) -> Teachers:
    return load_teachers(config)


@pytest.fixture
def reference() -> TransformersPolicy:
    """The student as the learner has it."""
    return TransformersPolicy.load(model_folder("embedded:student"))


def load_version(policy: VllmPolicy, folder: Path) -> None:
    policy.fill_weights(read_weights(folder), source=str(folder))


def respond(policy: Policy, temperature: float = 1.0) -> list[Response]:
    return policy.respond(PROMPTS, temperature=temperature, max_tokens=12, seeds=range(12))


def recomputed(policy: Policy, responses: list[Response]) -> np.ndarray:
    rows = [[*prompt, *response.ids] for prompt, response in zip(PROMPTS, responses, strict=True)]
    return np.concatenate([each[0] for each in policy.score(rows, [[(250, len(row))] for row in rows])])


def sampled(responses: list[Response]) -> np.ndarray:
    return np.concatenate([response.logprobs for response in responses])


def disturb(policy: TransformersPolicy) -> None:
    """Change every weight a little, as some hundred updates do."""
    with torch.no_grad():
        for parameter in policy.model.parameters():
            parameter += 0.05 * parameter.std() * torch.randn_like(parameter) if parameter.ndim > 1 else 0.02


def test_without_the_package_the_error_names_the_extra() -> None:
    if find_spec("vllm") is not None:
        pytest.skip("vLLM is installed")
    with pytest.raises(MissingExtraError, match=r"vllm is not installed; .*\.\[vllm\]"):
        VllmPolicy(model_folder("embedded:student"), dtype="float32", context=64, sequences=1)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["student.engine=vllm"], r"student\.engine is vllm; expected transformers, .* set clock: live"),
        ([*LIVE, "teacher.device=cuda:1"], r"teacher\.device is cuda:1; expected cuda"),
    ],
)
def test_what_vllm_cannot_do_is_refused_before_anything_starts(settings: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        load_config(DEFAULT, settings)


@slow
def test_an_exported_student_is_the_version_that_was_trained(
    exported: tuple[Path, VllmPolicy], reference: TransformersPolicy
) -> None:
    """vLLM scores with it what the run's weights score, and not what the student scored at first."""
    run, served = exported
    responses = respond(reference)
    first = recomputed(reference, responses)
    reference.fill_weights(read_weights(run / "weights" / "000003"), source="version 3")
    np.testing.assert_allclose(recomputed(served, responses), recomputed(reference, responses), atol=TOLERANCE)
    assert np.abs(recomputed(served, responses) - first).max() > 0.01


@slow
def test_real_rollouts_have_the_learners_log_probabilities(
    config: Config, student: VllmPolicy, teachers: Teachers, reference: TransformersPolicy
) -> None:
    """Played and scored by vLLM; the student's and the teacher's models in torch find the same values again."""
    check_models(config, student, teachers)
    training = TrainingRollouts(config, Codec(student.tokenizer))
    starts = [training.start(number, version=0) for number in range(6)]
    played = training.play_each(starts, version=0, student=student, teachers=None)
    rows = [rows_of(one, name=f"r{one.start.number}", version=0) for one in played]
    rollouts = [rollout for rollout in rows if isinstance(rollout, Rollout)]
    assert len(rollouts) == 6
    scored = score_rollouts(teachers.default, rollouts)
    again = score_rollouts(TransformersPolicy.load(model_folder("embedded:teacher")), rollouts)
    for ours, theirs in zip(scored, again, strict=True):
        for one, other in zip(ours.turns, theirs.turns, strict=True):
            np.testing.assert_allclose(one.teacher_logprobs or [], other.teacher_logprobs or [], atol=TOLERANCE)
    figures = TorchLearner(reference).update([turn for rollout in scored for turn in rollout.turns])
    assert figures.logprob_gap is not None
    assert figures.logprob_gap.tokens > 100
    assert figures.logprob_gap.largest < TOLERANCE
    assert figures.learner_kl_per_token > 0.01  # and they are not those of the teacher


@slow
def test_weights_are_replaced_in_place_and_nothing_old_is_used(
    student: VllmPolicy, reference: TransformersPolicy, tmp_path: Path
) -> None:
    """Each version says something else to the same prompts and seeds, with that version's own log probabilities.

    The prompts are in the prefix cache when a new version comes; going back brings the first text back.
    """
    torch.manual_seed(0)
    said = []
    for version in (0, 1, 2):
        if version:
            disturb(reference)
        publish_weights(tmp_path, version, gathered_weights(reference.model))
        load_version(student, tmp_path / f"{version:06d}")
        [first] = student._generate([PROMPT], [_sampling_params(max_tokens=1)])
        [second] = student._generate([PROMPT], [_sampling_params(max_tokens=1)])
        assert first.num_cached_tokens == 0 < second.num_cached_tokens
        responses = respond(student)
        said.append([response.ids for response in responses])
        np.testing.assert_allclose(sampled(responses), recomputed(reference, responses), atol=TOLERANCE)
        np.testing.assert_allclose(recomputed(student, responses), recomputed(reference, responses), atol=TOLERANCE)
    assert said[0] != said[1] != said[2] != said[0]
    load_version(student, tmp_path / "000000")
    assert [response.ids for response in respond(student)] == said[0]


@slow
def test_forbidden_ids_are_never_sampled(
    student: VllmPolicy, shy_student: VllmPolicy, reference: TransformersPolicy
) -> None:
    """Not even those that it would say first; its log probabilities stay those of the whole distribution."""
    favourites = {id_ for response in respond(student) for id_ in response.ids[:2]}
    assert favourites & FORBIDDEN
    for temperature in (0.0, 1.0):
        responses = respond(shy_student, temperature)
        assert FORBIDDEN.isdisjoint(id_ for response in responses for id_ in response.ids)
        np.testing.assert_allclose(sampled(responses), recomputed(reference, responses), atol=TOLERANCE)


@slow
def test_a_response_depends_on_its_prompt_and_seed(student: VllmPolicy, reference: TransformersPolicy) -> None:
    """In any company; it ends with the stop token or at the limit; log probabilities are those of temperature 1."""
    together = respond(student)
    alone = student.respond(PROMPTS[4:5] * 2, temperature=1.0, max_tokens=12, seeds=[4, 5])
    assert alone[0].ids == together[4].ids != alone[1].ids
    stop = student.tokenizer.eos_token_id
    for response in together:
        assert stop not in response.ids[:-1]
        assert response.ids[-1] == stop or len(response.ids) == 12
    for temperature in (0.0, 0.4):
        responses = respond(student, temperature)
        np.testing.assert_allclose(sampled(responses), recomputed(student, responses), atol=TOLERANCE)
    greedy = [response.ids for response in respond(student, 0.0)]
    assert greedy == [response.ids for response in respond(reference, 0.0)]


@slow
def test_responses_that_are_added_one_by_one_are_as_if_asked_together(
    student: VllmPolicy, reference: TransformersPolicy, tmp_path: Path
) -> None:
    """One more prompt with every token of the others; after new weights all that is said is theirs."""
    for version in (0, 1):
        if version:
            disturb(reference)
        publish_weights(tmp_path, version, gathered_weights(reference.model))
        load_version(student, tmp_path / f"{version:06d}")
        waiting, over = list(range(12)), dict[object, Response]()
        while waiting or student.pending:
            if waiting:
                key = waiting.pop(0)
                student.add(key, PROMPTS[key], temperature=1.0, max_tokens=12, seed=key)
            over.update(student.step())
        responses = [over[key] for key in range(12)]
        assert [response.ids for response in responses] == [response.ids for response in respond(student)]
        np.testing.assert_allclose(sampled(responses), recomputed(reference, responses), atol=TOLERANCE)


@slow
def test_wrong_weights_and_tokens_change_nothing(
    student: VllmPolicy, reference: TransformersPolicy, tmp_path: Path
) -> None:
    """Damaged weights, those of another model, ids outside the vocabulary: an error each, and the policy as before."""
    before = sampled(respond(student))
    publish_weights(tmp_path, 1, gathered_weights(reference.model))
    file = tmp_path / "000001" / "weights.safetensors"
    file.write_bytes(bytes([*file.read_bytes()[:-1], 0]))
    publish_weights(tmp_path, 2, gathered_weights(torch.nn.Linear(3, 3)))
    with pytest.raises(CheckpointError, match="sha256 is"):
        load_version(student, tmp_path / "000001")
    with pytest.raises(CheckpointError, match=r"'bias' is in the file, not in the model"):
        load_version(student, tmp_path / "000002")
    with pytest.raises(AlignmentError, match="outside the model's vocabulary"):
        student.score([[5, 10**6]], [[(1, 2)]])
    np.testing.assert_array_equal(sampled(respond(student)), before)


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """`vllm serve` of the embedded teacher; its address, long before it can answer."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--model", str(model_folder("embedded:teacher")), "--served-model-name", "teacher", "--enforce-eager"]
    command += ["--dtype", "float32", "--max-model-len", "600"]
    environment = {**os.environ, "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
    with TemporaryDirectory(prefix="v") as sockets:  # vLLM leaves them behind
        environment["TMPDIR"] = sockets
        process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        yield f"http://127.0.0.1:{port}/v1"
        process.terminate()
        process.wait(60)


@slow
def test_a_real_server_teaches_as_the_model_in_this_process(server: str, student: VllmPolicy) -> None:
    """It is asked again until it has started; then its scores and its own responses are those of the torch model."""
    away: list[Away] = []
    remote = OpenAIPolicy(server, model="teacher", timeout_s=60)
    waiting = Teachers(remote).retrying(limit_s=600.0, tells=away.append, waits=lambda: None).default
    model = TransformersPolicy.load(model_folder("embedded:teacher"))
    responses = respond(student)
    theirs = recomputed(waiting, responses)
    assert len(away) == 1
    np.testing.assert_allclose(theirs, recomputed(model, responses), atol=TOLERANCE)
    own = respond(remote)
    np.testing.assert_allclose(sampled(own), recomputed(model, own), atol=TOLERANCE)
    assert remote.context_length == 599


@slow
def test_a_live_run_trains_with_vllm(tmp_path: Path) -> None:
    """Explorer, teacher and evaluator in vLLM: four updates, versions as exact as their log probabilities."""
    sizes = ["learner.updates=4", "composer.batch_size=16", "evaluation.every=2", "evaluation.tasks=4"]
    run = tmp_path / "run"
    command = [sys.executable, "-m", "divopd", "train", str(DEFAULT), "--out", str(run)]
    for setting in [*LIVE, *sizes, "learner.lr=1e-7"]:  # so that older rows may be compared as well
        command += ["--set", setting]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1200, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    with Store.open_read_only(run) as store:
        audit_ledger(store)
        assert store.account().adds_up
        assert sorted(store.evaluations()) == [0, 2, 4]
        learned = [record.learner for record in store.update_records().values()]
    gaps = [figures.logprob_gap for figures in learned if figures and figures.logprob_gap]
    assert len(gaps) == 4
    assert max(gap.largest for gap in gaps) < 10 * TOLERANCE
