"""What is probably wrong with a run, in a sentence with what to do: a table of checks.

Each looks at the last updates and at the evaluations so far, and says nothing where all is well or too little is
known. The terminal tells a sentence when it first holds; the page tells over which updates each of them held.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from divopd.composers.composer import Settings
from divopd.methods import METHODS
from divopd.printable import printable
from divopd.records import EvaluationRecord, ProgramFigures, UpdateRecord
from divopd.report.gauge import WINDOW, percent

FEW = 3  # updates: fewer tell nothing
SAME_KL = (
    1e-3  # nats a token; the default student begins at 0.3, and half precision rounds by less than this on average
)
LOW_LOSS = 0.05  # nats a token, for β = 1
MOST = 0.5  # of the turns
NO_CHOICE = 0.1  # turns left over for each one trained
SHOWN_WORDS = 8
REMEDIES = {
    "prompt_truncated": "raise prompts.max_prompt_tokens",
    "no_teacher_logprobs": "check that the teacher answers with log probabilities",
    "not_finite": "check the teacher's log probabilities for NaN and infinity",
    "misaligned": "check that both models use the same tokenizer",
    "no_valid_token": "use an engine for the student that can forbid ids which the teacher does not know",
}


@dataclass(frozen=True)
class Evidence:
    """What is known of a run. `updates` are its last ones in order, `evaluations` all so far."""

    updates: Sequence[UpdateRecord]
    evaluations: Sequence[EvaluationRecord]
    settings: Settings  # of the composer
    beta: float = 1.0
    unseen_words: Sequence[str] = ()  # of evaluation tasks, which no training rollout has had
    looked_at: int = 0  # training rollouts, for these words
    first: Sequence[UpdateRecord] = ()  # the first updates of the run, if they are known
    programs: ProgramFigures | None = None  # of the whole run, if its environment is a program

    @property
    def recent(self) -> Sequence[UpdateRecord]:
        return self.updates[-WINDOW:]


def same_models(evidence: Evidence) -> str | None:
    """Student equals teacher: there is nothing to learn.

    Adam divides a gradient by its size, so that rounding alone moves such a student away: the first updates tell, by
    the rows that they were given.
    """
    begun = [abs(one.batch.kl_per_token) for one in evidence.first if one.learner and one.learner.valid_tokens]
    taught = [one for one in evidence.recent if one.learner is not None and one.learner.valid_tokens]
    gaps = [max(abs(one.batch.kl_per_token), abs(one.learner.learner_kl_per_token)) for one in taught if one.learner]
    if len(begun) >= FEW and max(begun) < SAME_KL:
        when = f"the first {len(begun)} updates"
    elif len(gaps) >= FEW and max(gaps) < SAME_KL:
        when = f"all of the last {len(gaps)} updates"
    else:
        return None
    return (
        f"student and teacher agree on every token (KL below {SAME_KL:g} in {when}), so there is nothing to learn: "
        "check that student.model and teacher.model are different models"
    )


def low_loss_without_success(evidence: Evidence) -> str | None:
    """The student is where its teacher wants it, and no task succeeds."""
    losses = [one.learner.loss for one in evidence.recent if one.learner is not None]
    late = [one for one in evidence.evaluations if one.version > 0][-2:]
    if len(losses) < FEW or len(late) < 2 or any(one.success_rate for one in late):
        return None
    if (loss := fmean(losses)) >= LOW_LOSS * evidence.beta:
        return None
    return (
        f"the loss is low ({loss:.3f}) and the student succeeds in none of {late[-1].tasks} tasks: see what it answers "
        "(`divopd watch RUN`, Answers), and whether the teacher itself succeeds (`divopd evaluate TEACHER`)"
    )


def invalid_turns(evidence: Evidence) -> str | None:
    """Most of the experience cannot be trained."""
    seen = sum(one.batch.rows + one.queue.invalid for one in evidence.recent)
    lost = sum(round(one.batch.dead_share * one.batch.rows) + one.queue.invalid for one in evidence.recent)
    if len(evidence.recent) < FEW or lost <= MOST * seen:
        return None
    reasons: Counter[str] = Counter()
    for one in evidence.recent:
        reasons.update(one.queue.invalid_by_reason or {})
    named = ", ".join(f"{reason} {percent(count / seen)}" for reason, count in reasons.most_common())
    remedy = next((REMEDIES[reason] for reason, _ in reasons.most_common(1) if reason in REMEDIES), None)
    return (
        f"{percent(lost / seen)} of the turns are invalid and teach nothing ({named or 'for reasons not recorded'}): "
        f"{remedy or '`divopd why RUN ROLLOUT` tells the reason of each'}"
    )


def answers_without_effect(evidence: Evidence) -> str | None:
    """Most of what the student answers in an evaluation does nothing."""
    answers = list((evidence.evaluations[-1].answers or {}).values()) if evidence.evaluations else []
    turns, silent, wrong, cut = (
        sum(getattr(one, name) for one in answers) for name in ("turns", "without_action", "invalid_actions", "cut")
    )
    if not turns or silent + wrong <= MOST * turns:
        return None
    return (
        f"{percent((silent + wrong) / turns)} of the turns of the last evaluation did nothing: no action could be read "
        f"from {percent(silent / turns)}, {percent(wrong / turns)} were not understood, {percent(cut / turns)} were "
        "cut at the limit: check prompts.answer, prompts.format and explorer.max_response_tokens"
    )


def unparsed_calls(evidence: Evidence) -> str | None:
    """Most tool calls of the student reach the program as text."""
    figures = evidence.programs
    tried = figures.tool_calls + figures.unparsed if figures else 0
    if figures is None or tried < FEW or figures.unparsed <= MOST * tried:
        return None
    return (
        f"{figures.unparsed} of {tried} answers that look like tool calls do not parse, and the programs got them as "
        "text: see what they look like (`divopd why RUN ROLLOUT`), compare environment.tools and "
        "environment.tool_parser with the model's page, and explorer.max_response_tokens with their length"
    )


def refused_calls(evidence: Evidence) -> str | None:
    """Most of what programs ask for is refused."""
    figures = evidence.programs
    asked = figures.calls + figures.refused if figures else 0
    if figures is None or asked < FEW or figures.refused <= MOST * asked:
        return None
    return (
        f"{figures.refused} of {asked} calls of the programs were refused: `divopd why RUN ROLLOUT` has the sentences"
    )


def unseen_words(evidence: Evidence) -> str | None:
    """The evaluation asks for things that training never shows."""
    words = evidence.unseen_words
    if not words:
        return None
    shown = ", ".join(printable(word) for word in words[:SHOWN_WORDS])
    more = f" and {len(words) - SHOWN_WORDS} more" if len(words) > SHOWN_WORDS else ""
    return (
        f"evaluation tasks have words that none of {evidence.looked_at} training rollouts had: {shown}{more}; the "
        "student never practises them: compare environment.train_split and environment.evaluation_split"
    )


def queue_never_full(evidence: Evidence) -> str | None:
    """Every turn is trained as it comes: there is nothing to choose from."""
    recent = evidence.recent
    if len(recent) < WINDOW // 2:
        return None
    narrow = not METHODS[evidence.settings.method].composer.keeps_pending  # its pool is its batch: others wait outside
    left: list[int] = []
    for one in recent:
        if one.queue.pending is None:
            return None
        waiting = one.queue.queued if narrow else one.queue.pending
        left.append(waiting + one.queue.stale + one.queue.aged_out)
    rows = fmean(one.batch.rows for one in recent)
    if fmean(left) >= NO_CHOICE * rows:
        return None
    return (
        f"the queue is never full: the last {len(recent)} updates had {(fmean(left) + rows) / max(rows, 1):.2f} turns "
        "for each slot, so which of them enter a batch is no choice, and methods cannot differ; to compare them, add "
        "explorers (explorer.rollouts_in_flight or explorer.processes) or lower composer.batch_size"
    )


CHECKS: dict[str, Callable[[Evidence], str | None]] = {
    "same models": same_models,
    "low loss without success": low_loss_without_success,
    "invalid turns": invalid_turns,
    "answers without effect": answers_without_effect,
    "unparsed calls": unparsed_calls,
    "refused calls": refused_calls,
    "unseen words": unseen_words,
    "queue never full": queue_never_full,
}


def warnings_of(evidence: Evidence) -> dict[str, str]:
    """What holds now, by the name of the check."""
    return {name: said for name, check in CHECKS.items() if (said := check(evidence)) is not None}


@dataclass(frozen=True)
class Held:
    """A warning and the updates, first and last, over which it held; `now`: it still does."""

    name: str
    sentence: str  # as it was at the last of them
    first: int
    last: int
    now: bool


MOST_LOOKS = 400  # at a run, evenly spread, the last update among them


def history_of(
    updates: Mapping[int, UpdateRecord], evaluations: Sequence[EvaluationRecord], last: Evidence
) -> list[Held]:
    """Every warning that held at some update of a run; `last` has what does not change with updates."""
    numbers = list(updates)
    step = max(1, -(-len(numbers) // MOST_LOOKS))
    looks = numbers[::-1][::step][::-1]  # the newest is among them
    held: dict[str, Held] = {}
    for update in looks or [-1]:
        window = [updates[number] for number in range(update + 1 - WINDOW, update + 1) if number in updates]
        known = [one for one in evaluations if one.version <= update + 1]
        first = [updates[number] for number in range(FEW) if number in updates and number <= update]
        evidence = replace(last, updates=window, evaluations=known, first=first)
        for name, sentence in warnings_of(evidence).items():
            first = held[name].first if name in held else update
            held[name] = Held(name, sentence, first, update, now=update == (looks or [-1])[-1])
    return list(held.values())
