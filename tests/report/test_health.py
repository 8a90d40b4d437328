"""Warnings: each is told by records that show its fault and by none of a run that is well, in terminal and report."""

from collections.abc import Callable
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest

from divopd.composers.composer import Settings
from divopd.records import Answers, EvaluationRecord, ProgramFigures, UpdateRecord
from divopd.report.health import CHECKS, WINDOW, Evidence, history_of, warnings_of
from divopd.report.unseen import unseen_words
from divopd.store import Store
from divopd.store.views import StoreViews
from doubles.small_records import make_evaluation_record, make_update_record
from evil_runs import make_evil_run
from fake_runs import make_run

Change = Callable[[UpdateRecord], UpdateRecord]


def kl(nats: float) -> Change:
    """An update whose rows have this KL per token, when they were scored and at the learner's weights."""

    def change(record: UpdateRecord) -> UpdateRecord:
        assert record.learner is not None
        learner = replace(record.learner, learner_kl_per_token=-nats)
        return replace(record, batch=replace(record.batch, kl_per_token=nats), learner=learner)

    return change


def loss(nats: float) -> Change:
    def change(record: UpdateRecord) -> UpdateRecord:
        assert record.learner is not None
        return replace(record, learner=replace(record.learner, loss=nats))

    return change


def queue(**figures: object) -> Change:
    return lambda record: replace(record, queue=replace(record.queue, **figures))


def dead(share: float) -> Change:
    return lambda record: replace(record, batch=replace(record.batch, dead_share=share))


def updates(*changes: Change, count: int = WINDOW) -> list[UpdateRecord]:
    """Updates of a run that is well, each changed in these ways."""
    made = [make_update_record(update) for update in range(count)]
    for change in changes:
        made = [change(one) for one in made]
    return made


def evaluations(*rates: float, answers: Answers | None = None) -> list[EvaluationRecord]:
    """One every five updates, from version 0 on."""
    made = [make_evaluation_record(5 * place, success_rate=rate) for place, rate in enumerate(rates)]
    return [replace(one, answers={"pick": answers}) if answers else one for one in made]


def told(
    *changes: Change, rates: tuple[float, ...] = (0.0, 10.0), method: str = "divopd", count: int = WINDOW
) -> dict[str, str]:
    return warnings_of(Evidence(updates(*changes, count=count), evaluations(*rates), Settings(method)))


def test_a_run_that_is_well_is_not_warned_of() -> None:
    """Nor one that has just begun, whatever its first figures are."""
    assert told() == {}
    assert warnings_of(Evidence([], [], Settings("divopd"))) == {}
    assert told(kl(0.0), loss(0.0), dead(0.9), queue(pending=0), rates=(0.0,), count=2) == {}


def test_a_student_that_is_its_own_teacher() -> None:
    """The KL is 0 in every update, to rounding; a single update with another is enough to be another model."""
    assert list(told(kl(1e-7))) == ["same models"]
    others = [*updates(kl(1e-7)), make_update_record(WINDOW)]
    assert warnings_of(Evidence(others, [], Settings("divopd"))) == {}
    assert told(kl(0.01)) == {}


def test_a_low_loss_without_success() -> None:
    """Success, a high loss or too few evaluations are no reason to worry; β scales the loss."""
    sentence = told(loss(0.01), rates=(0.0, 0.0, 0.0))["low loss without success"]
    assert "the loss is low (0.010) and the student succeeds in none of 20 tasks" in sentence
    assert told(loss(0.01), rates=(0.0, 0.0, 5.0)) == told(loss(0.2), rates=(0.0, 0.0, 0.0)) == {}
    assert told(loss(0.01), rates=(0.0, 0.0)) == {}
    scaled = Evidence(updates(loss(0.2)), evaluations(0.0, 0.0, 0.0), Settings("divopd"), beta=10.0)
    assert list(warnings_of(scaled)) == ["low loss without success"]


def test_most_turns_invalid() -> None:
    """Dropped by a gate or dead in a batch: the reasons are named, the first with its remedy; half is not most."""
    reasons = {"prompt_truncated": 9, "no_tokens": 1}
    dropped = told(queue(invalid=10, invalid_by_reason=reasons))["invalid turns"]
    assert dropped == (
        "56 % of the turns are invalid and teach nothing (prompt_truncated 50 %, no_tokens 6 %): "
        "raise prompts.max_prompt_tokens"
    )
    without_gate = told(dead(0.75), queue(invalid=0, invalid_by_reason={"no_tokens": 6}), method="vanilla")
    assert "75 % of the turns are invalid and teach nothing (no_tokens 75 %)" in without_gate["invalid turns"]
    assert "for reasons not recorded" in told(queue(invalid=10, invalid_by_reason=None))["invalid turns"]
    assert told(queue(invalid=8)) == {}


def test_answers_that_do_nothing() -> None:
    """Of the last evaluation; where it was not recorded what was answered, nothing is said."""
    most = Answers(turns=100, tokens=900, longest=9, cut=30, without_action=40, invalid_actions=11)
    [sentence] = warnings_of(Evidence([], evaluations(0.0, 10.0, answers=most), Settings("divopd"))).values()
    assert "51 % of the turns of the last evaluation did nothing" in sentence
    assert "no action could be read from 40 %, 11 % were not understood, 30 % were cut at the limit" in sentence
    half = replace(most, without_action=39)
    assert warnings_of(Evidence([], evaluations(0.0, answers=half), Settings("divopd"))) == {}
    old = [replace(one, answers=None) for one in evaluations(0.0)]
    assert warnings_of(Evidence([], old, Settings("divopd"))) == {}


def test_calls_of_programs_that_do_not_parse_or_are_refused() -> None:
    """More than half of them, and not before there are a few; a call that needs no tool is no failed one."""
    well = ProgramFigures(9, 0, calls=40, with_tools=30, tool_calls=5, unparsed=5, refused=40, undelivered=3)
    assert warnings_of(Evidence([], [], Settings("divopd"), programs=well)) == {}
    [sentence] = warnings_of(Evidence([], [], Settings("divopd"), programs=replace(well, unparsed=6))).values()
    assert "6 of 11 answers that look like tool calls do not parse" in sentence
    assert "environment.tool_parser" in sentence
    [sentence] = warnings_of(Evidence([], [], Settings("divopd"), programs=replace(well, refused=41))).values()
    assert "41 of 81 calls of the programs were refused: `divopd why RUN ROLLOUT`" in sentence
    few = replace(well, calls=0, with_tools=0, tool_calls=0, unparsed=2, refused=2)
    assert warnings_of(Evidence([], [], Settings("divopd"), programs=few)) == {}


def test_a_queue_that_is_never_full() -> None:
    """Nothing is left when a batch is made: in the pool of a method that has one, else in the queue."""
    assert "1.00 turns for each slot" in told(queue(pending=0))["queue never full"]
    assert told(queue(pending=0, queued=50)) != {}  # what arrived during the update was not to be chosen from
    assert told(queue(pending=1)) == told(queue(pending=0, stale=3)) == told(queue(pending=None)) == {}
    assert "queue never full" in told(queue(pending=0, queued=0), method="vanilla")
    assert told(queue(pending=0, queued=50), method="vanilla") == {}


def test_history_says_when_each_held() -> None:
    """From the first to the last update; the last sentence; whether it still holds."""
    made = [*updates(count=10), *(queue(invalid=99)(make_update_record(10 + place)) for place in range(5))]
    calm = [make_update_record(15 + place) for place in range(40)]
    run = {one.update: one for one in [*made, *calm]}
    assert [(one.name, one.first, one.now) for one in history_of(run, [], Evidence([], [], Settings("divopd")))] == [
        ("invalid turns", 10, False)
    ]
    still = history_of({one.update: one for one in made}, [], Evidence([], [], Settings("divopd")))
    assert [(one.first, one.last, one.now) for one in still] == [(10, 14, True)]
    spoken = history_of({}, [], Evidence([], [], Settings("divopd"), unseen_words=["teapot"], looked_at=7))
    assert "none of 7 training rollouts had: teapot" in spoken[0].sentence


def test_words_that_training_never_has(tmp_path: Path) -> None:
    """Against the prompts of training rollouts as they are in the store; nothing is claimed without them."""
    run = make_evil_run(tmp_path / "run")
    with StoreViews.open(run) as store:
        assert unseen_words(store) == ([], 0)  # no evaluation has said its words
    with Store.open(run) as store:
        store.note("evaluation_words", {"words": ["answer", "teapot"]})
    with StoreViews.open(run) as store:
        unseen, looked_at = unseen_words(store)
        assert unseen == ["teapot"]
        assert looked_at == len(store.rollout_ids()) > 0
    plain = make_run(tmp_path / "plain")  # has no tokenizer
    with Store.open(plain) as store:
        store.note("evaluation_words", {"words": ["teapot"]})
    with StoreViews.open(plain) as store:
        assert unseen_words(store) == ([], 0)


def test_the_terminal_tells_each_once(tmp_path: Path) -> None:
    """When it first holds, after the line of its update; unseen words when the run is over."""
    pytest.importorskip("pydantic", reason="for want of the extra train")
    from rich.console import Console

    from divopd.config import Config
    from divopd.report.terminal import TerminalView

    out = StringIO()
    config = Config.model_validate({"learner": {"updates": 40}})
    with TerminalView(config, console=Console(file=out, width=400, markup=False, highlight=False)) as view:
        for one in updates(kl(0.0), queue(pending=0), count=30):
            view.updated(one)
    lines = [line for line in out.getvalue().splitlines() if line.startswith("warning: ")]
    assert [line.split(" ")[1] for line in lines] == ["student", "the"]
    assert len(CHECKS) == 8
