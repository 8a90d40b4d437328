"""Supervised fine-tuning and evaluation on a small environment: it learns, it can be undone, it is reproducible."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="for want of the extra train")
pytest.importorskip("transformers", reason="for want of the extra train")

from torch import Tensor  # noqa: E402

from coin_hunt import CoinHunt, Guide  # noqa: E402
from divopd.bootstrap.demonstrations import Slips, demonstrate, encode  # noqa: E402
from divopd.bootstrap.sft import (  # noqa: E402
    Evaluations,
    Lessons,
    SftSettings,
    SftUpdate,
    accumulate_gradients,
    fine_tune,
    new_policy,
    teach,
)
from divopd.cli import sft as command  # noqa: E402
from divopd.errors import EnvironmentFailure, InputError  # noqa: E402
from divopd.evaluation import Evaluation, Exam  # noqa: E402
from divopd.explorer import Acting  # noqa: E402
from divopd.models.attention import Packed  # noqa: E402
from divopd.models.policy import Response  # noqa: E402
from divopd.models.tiny import TinySize  # noqa: E402
from divopd.models.transformers_policy import TransformersPolicy, hidden_states  # noqa: E402
from divopd.prompts import Codec, PromptStyle  # noqa: E402

HUNT = f"{Path(__file__).parents[1] / 'coin_hunt.py'}:CoinHunt"
TERSE = PromptStyle(answer="terse", actions="unlisted")
LESSONS = Lessons(HUNT, TERSE)
SMALL = TinySize(hidden=64, layers=2, heads=4, key_value_heads=4, feed_forward=128, context=512)
TASKS = CoinHunt.tasks("test")


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """More threads only wait for each other in models this small."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def untrained() -> TransformersPolicy:
    return new_policy(LESSONS, seed=0, size=SMALL)


@pytest.fixture(scope="module")
def teacher() -> tuple[TransformersPolicy, Evaluation, list[SftUpdate]]:
    """A small model taught until it nearly always finds the coin."""
    policy = new_policy(LESSONS, seed=0, size=SMALL)
    reports: list[SftUpdate] = []
    settings = SftSettings(updates=200, rollouts=16, learning_rate=5e-3)
    last = teach(
        policy, LESSONS, settings, evaluations=Evaluations(every=50), wanted=lambda p: p >= 90, report=reports.append
    )
    return policy, last, reports


def exam(policy: TransformersPolicy, tasks: Sequence[str] = TASKS, *, name: str = HUNT, in_flight: int = 64) -> Exam:
    acting = Acting(TERSE, Codec(policy.tokenizer), temperature=0.4, max_response_tokens=6, seed=0)
    return Exam(name, tuple(tasks), acting, horizon=30, in_flight=in_flight, workers=0)


def test_it_learns_and_stops_at_the_wanted_success_rate(
    untrained: TransformersPolicy, teacher: tuple[TransformersPolicy, Evaluation, list[SftUpdate]]
) -> None:
    """From no success to the wanted rate; the run ends with the evaluation that reached it."""
    _, last, reports = teacher
    assert exam(untrained).play(untrained).percent < 30
    assert last.percent >= 90
    evaluations = [report.evaluation for report in reports if report.evaluation]
    assert evaluations[-1] == last
    assert all(evaluation.percent < 90 for evaluation in evaluations[:-1])
    assert reports[-1].loss < reports[0].loss / 3


@pytest.mark.slow
def test_weak_labels_weaken_a_capable_model(
    teacher: tuple[TransformersPolicy, Evaluation, list[SftUpdate]],
) -> None:
    """Fine-tuned on a policy that mostly slips, a copy of the teacher fails more often."""
    capable, last, _ = teacher
    policy = new_policy(LESSONS, seed=0, size=SMALL)
    policy.model.load_state_dict(capable.model.state_dict())
    lessons = replace(LESSONS, labels="weak", slips=Slips(plausible=0.2, random=0.5, repeat=0.3))
    settings = SftSettings(updates=30, learning_rate=3e-3, warmup=5)
    weak = teach(policy, lessons, settings, evaluations=Evaluations(every=10), wanted=lambda percent: percent <= 60)
    assert weak.percent <= 60 < last.percent


@pytest.mark.parametrize("reading", [0.0, 0.5])
def test_packed_gradients_are_those_of_target_by_target_training(untrained: TransformersPolicy, reading: float) -> None:
    """Loss and gradients equal those of plain means over targets (and what is read), each after its own context."""
    model, codec = untrained.model, Codec(untrained.tokenizer)
    examples = [encode(d, TERSE, codec) for d in islice(demonstrate(HUNT, "expert", slips=Slips(), seed=5), 6)]
    assert len({len(example.ids) for example in examples}) > 1
    model.zero_grad()
    loss = accumulate_gradients(untrained, examples, reading=reading)
    packed = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()

    def mean(parts: list[tuple[np.ndarray, np.ndarray, np.ndarray]]) -> Tensor:
        losses = [
            -_logits(untrained, ids[:position]).log_softmax(-1)[token]
            for ids, positions, tokens in parts
            for position, token in zip(positions, tokens, strict=True)
        ]
        return torch.stack(losses).mean()

    learned = mean([(example.ids, example.positions, example.targets) for example in examples])
    known = mean([(example.ids, example.read, example.ids[example.read]) for example in examples])
    (learned + reading * known).backward()
    assert loss == pytest.approx(float(learned.detach()), rel=1e-5)
    for ours, parameter in zip(packed, model.parameters(), strict=True):
        torch.testing.assert_close(ours, parameter.grad, rtol=1e-4, atol=1e-6)
    model.zero_grad()


def _logits(policy: TransformersPolicy, ids: np.ndarray) -> Tensor:
    hidden = hidden_states(policy.model, torch.from_numpy(ids), torch.arange(len(ids)), Packed([len(ids)]))
    return policy.model.get_output_embeddings()(hidden[-1])


@pytest.mark.slow
def test_the_same_seeds_give_the_same_weights() -> None:
    """Two trainings with the same seeds end in the same bits; another seed does not."""
    ends = []
    for seed in (1, 1, 2):
        policy = new_policy(LESSONS, seed=seed, size=SMALL)
        played = demonstrate(HUNT, "expert", slips=Slips(), seed=seed)
        codec = Codec(policy.tokenizer)
        fine_tune(policy, (encode(d, TERSE, codec) for d in played), SftSettings(updates=3, rollouts=4))
        ends.append(torch.cat([parameter.detach().flatten() for parameter in policy.model.parameters()]))
    assert torch.equal(ends[0], ends[1])
    assert not torch.equal(ends[0], ends[2])


def test_an_evaluation_does_not_depend_on_what_runs_beside_it(
    teacher: tuple[TransformersPolicy, Evaluation, list[SftUpdate]],
) -> None:
    """One rollout in flight or many, new environments or those of an evaluation before: the same rollouts."""
    policy, _, _ = teacher
    ten, three = exam(policy, TASKS[:10], in_flight=10), exam(policy, TASKS[:10], in_flight=3)
    many, few, again = (one.play(policy) for one in (ten, three, three))
    answers = [[[t.response.ids for t in r.turns] for r in evaluation.rollouts] for evaluation in (many, few, again)]
    assert answers[0] == answers[1] == answers[2]
    assert [pool.size for pool in three._made] == [3]
    assert [rollout.start.task for rollout in many.rollouts] == TASKS[:10]


class Scripted:
    """A policy that says what a function of the turn's prompt says."""

    def __init__(self, codec: Codec, words: str) -> None:
        self.codec, self.words, self.calls = codec, words, 0

    def respond(
        self, prompts: Sequence[Sequence[int]], *, temperature: float, max_tokens: int, seeds: Sequence[int]
    ) -> list[Response]:
        self.calls += 1
        ids = self.codec.response_ids(self.words)
        return [Response(ids, np.zeros(len(ids))) for _ in prompts]

    def score(self, sequences: object, spans: object) -> list[list[np.ndarray]]:
        raise AssertionError("an evaluation needs no scores")


def test_a_teacher_can_take_over(teacher: tuple[TransformersPolicy, Evaluation, list[SftUpdate]]) -> None:
    """The policy named for a turn acts at that turn, on the history that the other has made."""
    policy, _, _ = teacher
    lost = Scripted(Codec(policy.tokenizer), "go red")
    tasks = [task for task in TASKS if "red" in CoinHunt().reset(task).text]
    assert exam(policy, tasks).play(lost).percent == 0
    taken_over = exam(policy, tasks).play_takeover(policy, student=lost, after_turns=1)
    assert taken_over.percent > 30  # a barely trained teacher is easily led astray
    assert lost.calls == 8 + 1


def test_answers_without_an_action_and_dead_environments_cost_one_rollout(untrained: TransformersPolicy) -> None:
    """An empty answer is an invalid action until the horizon; a failure of the environment ends its rollout only."""
    silent = Scripted(Codec(untrained.tokenizer), "")
    assert {len(rollout.turns) for rollout in exam(untrained, TASKS[:3]).play(silent).rollouts} == {30}
    dying = exam(untrained, ["1", "die", "2"], name=f"{__file__}:Dying")
    ended = dying.play(Scripted(Codec(untrained.tokenizer), "go red"))
    assert [len(rollout.turns) for rollout in ended.rollouts] == [8, 1, 8]


class Dying(CoinHunt):
    """An environment that dies on one task."""

    def reset(self, task: str) -> object:  # pyright: ignore[reportIncompatibleMethodOverride]
        self.dies = task == "die"
        return super().reset(task)

    def step(self, action: str) -> object:  # pyright: ignore[reportIncompatibleMethodOverride]
        if self.dies:
            raise EnvironmentFailure("the environment died")
        return super().step(action)


def test_settings_are_checked_and_demonstrations_may_end(untrained: TransformersPolicy) -> None:
    """Zero updates and an empty stream of rollouts are the user's errors."""
    with pytest.raises(InputError, match="0 updates"):
        SftSettings(updates=0)
    with pytest.raises(InputError, match="every 0 updates"):
        Evaluations(every=0)
    with pytest.raises(InputError, match="ended before update 0"):
        fine_tune(untrained, iter(()), SftSettings(updates=1))


@pytest.mark.slow
def test_the_command_makes_a_model_that_loads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`divopd sft` trains, evaluates, saves in the ordinary format, and weakens what it has saved."""
    import argparse

    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    out = tmp_path / "model"
    short = ["--updates", "2", "--rollouts", "2", "--evaluate-every", "2", "--tasks", "1"]
    assert command.run(parser.parse_args([HUNT, "--out", str(out), *short])) == 0
    printed = capsys.readouterr()
    assert "success rate" in printed.out
    assert "update 2: success rate" in printed.err
    assert TransformersPolicy.load(out).tokenizer.eos_token == "<|end|>"
    weaken = [HUNT, "--out", str(tmp_path / "weak"), "--from", str(out), "--labels", "weak", *short]
    assert command.run(parser.parse_args([*weaken, "--until", "100"])) == 0
    assert command.run(parser.parse_args([*weaken[:2], str(tmp_path / "good"), *short, "--until", "101"])) == 1
    for wrong, message in ((["--out", str(out)], "exists"), (["--out", "x", "--labels", "weak"], "--from MODEL")):
        with pytest.raises(InputError, match=message):
            command.run(parser.parse_args([HUNT, *wrong]))


def test_the_guide_of_the_small_environment_wins() -> None:
    """The tests' own expert always finds the coin."""
    environment, guide = CoinHunt(), Guide()
    for task in TASKS:
        seen = environment.reset(task)
        guide.reset(seen)
        for _ in range(2):
            seen = environment.step(guide.act(seen))
        assert seen.success
