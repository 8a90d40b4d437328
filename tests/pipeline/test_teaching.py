"""The role of a teacher without processes: what it scores and answers first, and what it does while some are away."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="for want of the extra train")

from divopd.errors import AlignmentError, TeacherAwayError, WrongAnswerError
from divopd.failures import FIRST, WINDOW
from divopd.models.policy import Response
from divopd.pipeline.access import Access, WeightsFolder
from divopd.pipeline.asked_teachers import AskedTeachers
from divopd.pipeline.processes import News
from divopd.pipeline.teaching import ASIDE_S, Teaching
from divopd.pipeline.wishes import Stopped
from divopd.report.page.health import health
from divopd.run.folder import RunFolder
from divopd.store import WRONG_ANSWER, Answer, Question, Store, StoreViews
from divopd.teacher import RETRY_S, Teachers
from divopd.turns import Rollout
from divopd.validity import why_invalid
from doubles.listener import Listener
from small_runs import config
from strategies import turn


@dataclass
class ScriptedTeacher:
    """Scores every token with `value` and responds with `value` as a token; what it was asked for is written down."""

    value: int
    away: bool = False
    asked: list[str] = field(default_factory=list)
    while_scoring: Callable[[], None] = lambda: None
    tokenizer, exact, context_length = None, True, None

    def score(self, sequences: Sequence[Any], spans: Sequence[Any]) -> list[list[np.ndarray]]:
        self._hear("score")
        self.while_scoring()
        return [[np.full(end - start, -float(self.value)) for start, end in each] for each in spans]

    def respond(
        self, prompts: Sequence[Any], *, temperature: float, max_tokens: int, seeds: Sequence[int]
    ) -> list[Response]:
        self._hear(f"respond {[list(p) for p in prompts]} {temperature} {max_tokens} {list(seeds)}")
        return [Response([self.value], np.asarray([-0.5])) for _ in prompts]

    def _hear(self, what: str) -> None:
        self.asked.append(what)
        if self.away:
            raise TeacherAwayError("http://host:80/v1 cannot be reached", who="host:80")


def waiting(name: str, task: str = "t") -> Rollout:
    return Rollout(name, (turn(name, 0, task=task, teacher_logprobs=None),))


def question(number: int, task: str = "t", **changes: Any) -> Question:
    return Question(number, task, [3, number], temperature=0.7, max_tokens=5, seed=number)._replace(**changes)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    Store.create(tmp_path / "store.db").close()
    return tmp_path


@pytest.fixture
def store(run: Path) -> Iterator[Store]:
    with Store.open(run) as store:
        yield store


def teaching(store: Store, teachers: Teachers, *, rank: int = 0, limit_s: float = 600.0, **changes: Any) -> Teaching:
    settings = config(store.path.parent, clock="live", teacher={"away_limit_s": limit_s})
    folder = RunFolder(store.path.parent)
    access = Access(settings, store, WeightsFolder(folder), is_over=lambda: False, rank=rank)
    access.open_store = lambda: Store.open(folder.path)
    return Teaching(access, teachers, **changes)


def kinds(store: Store) -> list[str]:
    return [kind for _, kind, _ in store.events()]


def left(store: Store) -> int:
    """Records of work that is under way."""
    return store._db.execute("SELECT count(*) FROM records WHERE kind <> 'teacher_turns'").fetchone()[0]


def test_a_teacher_scores_what_waits_and_answers_what_is_asked(store: Store) -> None:
    """Questions that want the same go in one call; each task has its own teacher."""
    default, other = ScriptedTeacher(1), ScriptedTeacher(2)
    teacher = teaching(store, Teachers(default, {"other*": other}))
    for number in range(20):
        store.offer(waiting(f"r{number}", "other" if number % 2 else "t"), generated_tokens=1)
    store.ask("explorer-0", [question(5), question(6), question(7, "other 1"), question(8, temperature=0.1)])
    assert teacher.answer()
    assert default.asked == ["respond [[3, 5], [3, 6]] 0.7 5 [5, 6]", "respond [[3, 8]] 0.1 5 [8]"]
    assert store.answers([5, 6, 7, 8]) == {n: Answer([2 if n == 7 else 1], [-0.5]) for n in (5, 6, 7, 8)}
    assert not teacher.answer()
    assert [teacher.score(), teacher.score(), teacher.score()] == [True, True, False]
    assert store.unscored(9) == []
    scores = {stored.rollout: stored.teacher_logprobs for stored in store.turns()}
    assert all(set(scores[f"r{number}"] or ()) == {-2.0 if number % 2 else -1.0} for number in range(20))
    store.forget_questions([5, 6, 7, 8])
    assert left(store) == 0
    said: list[Any] = []
    teacher.access.doing = lambda *words: said.append(words)
    teacher.say()
    assert said == [("teacher", "scoring rollouts", 20)]


def test_a_teacher_that_is_away_holds_up_nobody_elses_rollouts(store: Store) -> None:
    """However many of its own wait before them; it is not asked again at once, and asked again later."""
    away, present, now = ScriptedTeacher(1, away=True), ScriptedTeacher(2), [1000.0]
    store.clock = lambda: now[0]
    teacher = teaching(store, Teachers(present, {"away": away}))
    store.offer(waiting("old"), generated_tokens=1)
    for number in range(40):
        store.offer(waiting(f"r{number}", "away"), generated_tokens=1)
    store.ask("explorer-0", [question(1, "away"), question(2)])
    assert teacher.answer()
    assert [teacher.score(), teacher.score(), teacher.score()] == [False, False, True]
    assert list(store.answers([1, 2])) == [2]
    assert (len(away.asked), present.asked[-1], kinds(store)) == (1, "score", ["teacher_away"])
    away.away = False
    assert not teacher.score()  # all of it is set aside
    now[0] += ASIDE_S
    time.sleep(RETRY_S)
    assert teacher.answer()
    while teacher.score():
        pass
    assert (store.unscored(9), list(store.answers([1]))) == ([], [1])
    assert kinds(store) == ["teacher_away", "teacher_back"]


def test_an_absence_is_shown_at_once_in_the_terminal_and_on_the_page(store: Store) -> None:
    """Who, and when it is given up; two teacher processes that miss the same server are one sentence."""
    listener, said = Listener(), list[str]()
    with StoreViews.open(store.path) as views:
        news = News(views, listener)
        for rank in range(2):
            store.offer(waiting(f"r{rank}"), generated_tokens=1)
            teacher = teaching(store, Teachers(ScriptedTeacher(1, away=True)), rank=rank)
            teacher.access.doing = lambda role, what, *_: said.append(f"{role} {what}")
            teacher.score()
            teacher.say()
        news.tell()
        page = health(views)["happened"]
    [sentence] = listener.sentences
    assert sentence.startswith("host:80 is away, its rollouts wait until ")
    assert said[0] == f"teacher waiting: {sentence}"
    assert [(one["what"], one["seconds"]) for one in page] == [("teacher away", None)] * 2
    assert page[0]["why"] == sentence


def test_an_absence_that_lasts_too_long_ends_the_teacher(store: Store) -> None:
    teacher = teaching(store, Teachers(ScriptedTeacher(1, away=True)), limit_s=0.001)
    store.clock = lambda: 0.0
    store.offer(waiting("a"), generated_tokens=1)
    assert not teacher.score()
    store.clock = lambda: ASIDE_S
    time.sleep(RETRY_S)
    with pytest.raises(TeacherAwayError, match=r"it was away for 0.001 s \(teacher.away_limit_s\)"):
        teacher.score()


# ── wrong answers ─────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass
class LyingTeacher(ScriptedTeacher):
    """Answers wrongly about sequences that end with a token of `lies`, alone or among others."""

    lies: set[int] = field(default_factory=set)

    def score(self, sequences: Sequence[Any], spans: Sequence[Any]) -> list[list[np.ndarray]]:
        scores = super().score(sequences, spans)
        if self.lies & {ids[-1] for ids in sequences}:
            raise WrongAnswerError("http://host:80/v1 returned 0.5 as a log probability")
        return scores

    def respond(self, prompts: Sequence[Any], **wish: Any) -> list[Response]:
        responses = super().respond(prompts, **wish)
        if self.lies:
            raise WrongAnswerError("http://host:80/v1 answered without a choice")
        return responses


def offer(store: Store, number: int, *, task: str = "t") -> None:
    """A rollout whose response ends with its number."""
    row = turn(f"r{number}", 0, task=task, teacher_logprobs=None)
    store.offer(
        Rollout(row.rollout, (replace(row, response_ids=[*row.response_ids[:-1], number]),)), generated_tokens=1
    )


def test_a_wrong_answer_costs_the_rollout_that_it_is_about(store: Store) -> None:
    """And no other that was asked about with it; it is put without scores, counted, and told with its reason."""
    liar, listener = LyingTeacher(1, lies={103, 108}), Listener()
    teacher = teaching(store, Teachers(liar))
    for number in range(100, 110):
        offer(store, number)
    with StoreViews.open(store.path) as views:
        news = News(views, listener)
        assert teacher.score()
        news.tell()
    assert (store.unscored(9), teacher.scored, left(store)) == ([], 10, 0)
    reasons = {stored.rollout: why_invalid(stored) for stored in store.turns()}
    assert {name for name, reason in reasons.items() if reason} == {"r103", "r108"}
    assert {reasons["r103"], reasons["r108"]} == {"no_teacher_logprobs"}
    events = [event for _, kind, event in store.events() if kind == WRONG_ANSWER]
    assert [event["rollout"] for event in events] == ["r108", "r103"]
    assert kinds(store) == [WRONG_ANSWER] * 2
    assert listener.sentences[0] == (
        "a teacher's answer was wrong about r108 (task t), which is not trained: "
        "http://host:80/v1 returned 0.5 as a log probability"
    )
    assert "2 answers of teachers were wrong so far, the last about r103" in listener.sentences[1]


def lies_borne(store: Store, liar: LyingTeacher, *, first: int, count: int) -> int:
    """How many rollouts with these numbers are put before the teacher ends."""
    teacher, before = teaching(store, Teachers(liar, {"other": ScriptedTeacher(2)})), store.arrived().rollouts
    for number in range(first, first + count):
        offer(store, number)
        offer(store, 10_000 + number, task="other")  # a teacher that is right does not make up for one that is not
        try:
            teacher.score()
        except AlignmentError:
            break
    return (store.arrived().rollouts - before + 1) // 2


def test_how_many_wrong_answers_a_run_bears(store: Store) -> None:
    """Not more than half of a teacher's last 50, and fewer if it was never right; the last one is put, too."""
    assert lies_borne(store, LyingTeacher(1, lies=set(range(100, 200))), first=100, count=50) == FIRST
    offer(store, 50)
    words = (
        "the answers about 1 of the last 1 rollouts of a teacher were wrong, the last one about r50: http://host:80/v1"
    )
    with pytest.raises(AlignmentError, match=words):
        teaching(store, Teachers(LyingTeacher(1, lies={50}), first=1)).score()
    late = LyingTeacher(1, lies=set(range(260, 400)))
    assert lies_borne(store, late, first=200, count=100) == 60 + WINDOW // 2 + 1
    often = LyingTeacher(1, lies=set(range(401, 600, 2)))
    assert lies_borne(store, often, first=400, count=120) == 120


def test_a_teacher_that_lies_and_goes_is_asked_about_the_rest_later(store: Store) -> None:
    """What was found out before it went away is kept."""
    liar, now = LyingTeacher(1, lies={101}), [1000.0]
    store.clock = lambda: now[0]
    teacher = teaching(store, Teachers(liar))
    for number in (100, 101, 102):
        offer(store, number)

    def go() -> None:
        liar.away = len(liar.asked) == 3  # after all of them, and the first two alone

    liar.while_scoring = go
    assert teacher.score()
    assert [rollout.id for rollout in store.unscored(9)] == ["r100"]
    assert kinds(store) == [WRONG_ANSWER, "teacher_away"]
    now[0] += ASIDE_S
    liar.away, liar.while_scoring = False, lambda: None
    time.sleep(RETRY_S)
    assert teacher.score()
    assert (store.unscored(9), kinds(store)) == ([], [WRONG_ANSWER, "teacher_away", "teacher_back"])


def test_a_teacher_that_is_to_act_and_answers_wrongly_is_asked_again(store: Store) -> None:
    """As if it were away: the rollout that waits for it goes on when it answers rightly."""
    liar, now = LyingTeacher(1, lies={1}), [1000.0]
    store.clock = lambda: now[0]
    teacher = teaching(store, Teachers(liar))
    store.ask("explorer-0", [question(1)])
    assert not teacher.answer()
    [(_, kind, event)] = store.events()
    assert (kind, event["error"]) == (
        "teacher_away",
        "http://host:80/v1 answered without a choice; it is asked again",
    )
    liar.lies = set()
    now[0] += ASIDE_S
    time.sleep(RETRY_S)
    assert teacher.answer()
    assert kinds(store) == ["teacher_away", "teacher_back"]


# ── leases ────────────────────────────────────────────────────────────────────────────────────────────────────────


class RenewedStore(Store):
    """Counts how often something was renewed, on a clock that the test moves."""

    renewals, moment = 0, 1000.0
    clock = staticmethod(lambda: RenewedStore.moment)

    def renew(self, holder: str, *, seconds: float) -> int:
        held = super().renew(holder, seconds=seconds)
        RenewedStore.renewals += 1
        return held


def test_a_teacher_keeps_what_it_works_on(run: Path) -> None:
    """For longer than a lease: nobody else is given it meanwhile. When it stops, others have the rest at once."""
    others: list[int] = []

    def work() -> None:
        with RenewedStore.open(run) as second:
            for _ in range(10):  # of half a lease each
                RenewedStore.moment += 0.1
                before, deadline = RenewedStore.renewals, time.monotonic() + 60
                while RenewedStore.renewals < before + 2 and time.monotonic() < deadline:  # one may be under way
                    time.sleep(0.01)
                others.append(len(second.claim("other", 9, seconds=0.2)))

    with RenewedStore.open(run) as store:
        teacher = teaching(store, Teachers(ScriptedTeacher(1, while_scoring=work)), lease_s=0.2)
        teacher.access.open_store = lambda: RenewedStore.open(run)
        for name in ("a", "b"):
            store.offer(waiting(name), generated_tokens=1)
        teacher.access.is_over = lambda: store.arrived().rollouts == 1  # after the first of two
        with pytest.raises(Stopped):
            _score_keeping(teacher)
        assert others == [0] * 10
        assert [rollout.id for rollout in store.claim("other", 9, seconds=0.2)] == ["a"]


def _score_keeping(teacher: Teaching) -> None:
    with teacher.keeping_leases():
        teacher.score()


# ── as an explorer sees it ────────────────────────────────────────────────────────────────────────────────────────


def test_an_explorer_is_answered_by_whoever_teaches_the_task(run: Path, store: Store) -> None:
    """Responses in order, by two teachers at once, and nothing is left behind."""
    over, counts = threading.Event(), [0, 0]

    def teach(rank: int) -> None:
        with Store.open(run) as own:
            teacher = teaching(own, Teachers(ScriptedTeacher(7), {"odd": ScriptedTeacher(8)}), rank=rank)
            while not over.wait(0.01):
                counts[rank] += teacher.answer()

    threads = [threading.Thread(target=teach, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    try:
        teachers = AskedTeachers(store, asker="explorer-0", patterns=["odd"])
        assert teachers.of("a") is teachers.of("b") is not teachers.of("odd")
        for task, value in (("a", 7), ("odd", 8), ("b", 7)):
            teacher, heard = teachers.of(task), dict[Any, Any]()
            teacher.add("first", np.asarray([3, 4]).tolist(), temperature=0.7, max_tokens=2, seed=int(np.uint32(1)))
            teacher.add("second", [5], temperature=0.7, max_tokens=2, seed=2)
            assert teacher.pending == 2
            while teacher.pending:
                heard.update(teacher.step())
            assert {key: (r.ids, r.logprobs.tolist()) for key, r in heard.items()} == dict.fromkeys(
                ("first", "second"), ([value], [-0.5])
            )
            assert teacher.step() == []
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert sum(counts) > 0
    assert left(store) == 0


def test_an_explorer_that_stops_or_dies_leaves_no_question(store: Store) -> None:
    """What it asked is forgotten when it stops; what an earlier life asked, the next one forgets."""
    teachers = AskedTeachers(store, asker="explorer-0", patterns=[])
    teachers.of("t").add(0, [1], temperature=1.0, max_tokens=1, seed=0)
    assert left(store) == 1
    teachers.forget()
    assert left(store) == 0
    store.ask("explorer-0", [Question(1, "t", [1], temperature=1.0, max_tokens=1, seed=0)])
    AskedTeachers(store, asker="explorer-1", patterns=[])
    assert left(store) == 1
    AskedTeachers(store, asker="explorer-0", patterns=[])
    assert left(store) == 0
