"""How several teachers share what waits for them, in every store: leases of rollouts, questions of explorers."""

from dataclasses import replace

from store_processes import make_rollout

from divopd.store import Answer, Question
from divopd.turns import Rollout
from doubles.memory_store import AnyStore


def ids(rollouts: list[Rollout]) -> list[str]:
    return [rollout.id for rollout in rollouts]


def test_a_rollout_is_claimed_by_one_teacher_at_a_time(store: AnyStore) -> None:
    """Newest first; until the lease runs out nobody else is given it, and renewed it does not run out."""
    now = [100.0]
    store.clock = lambda: now[0]
    for number in range(3):
        store.offer(make_rollout(f"e.{number}"), generated_tokens=5)
    assert ids(store.claim("a", 2, seconds=30)) == ["e.2", "e.1"]
    assert ids(store.claim("b", 9, seconds=30)) == ["e.0"]
    now[0] = 129.0
    assert store.renew("a", seconds=30) == 2
    assert store.claim("c", 9, seconds=30) == []
    now[0] = 130.0  # b has died
    assert ids(store.claim("c", 9, seconds=30)) == ["e.0"]
    assert store.renew("b", seconds=30) == 0
    now[0] = 159.0
    assert ids(store.claim("d", 9, seconds=30)) == ["e.2", "e.1"]


def test_a_teacher_that_was_started_again_has_its_own_at_once(store: AnyStore) -> None:
    """What an earlier life of it had claimed; and a clock that was set back keeps nobody waiting."""
    now = [10_000.0]
    store.clock = lambda: now[0]
    store.offer(make_rollout("e.1"), generated_tokens=5)
    for holder in ("a", "a"):
        assert ids(store.claim(holder, 9, seconds=30)) == ["e.1"]
    now[0] = 0.0
    assert ids(store.claim("b", 9, seconds=30)) == ["e.1"]


def test_what_is_set_aside_comes_back_later(store: AnyStore) -> None:
    """Nobody is given it meanwhile, not even who set it aside: its teacher is away, and others have work to do."""
    now = [0.0]
    store.clock = lambda: now[0]
    for number in range(2):
        store.offer(make_rollout(f"e.{number}"), generated_tokens=5)
    assert ids(store.claim("a", 1, seconds=30)) == ["e.1"]
    assert store.set_aside("a", seconds=5) == 1
    assert ids(store.claim("a", 9, seconds=30)) == ["e.0"]
    assert store.claim("b", 9, seconds=30) == []
    now[0] = 5.0
    assert ids(store.claim("b", 9, seconds=30)) == ["e.1"]


def test_the_first_scores_count(store: AnyStore) -> None:
    """Two teachers may have scored the same, a little differently: the second is told, and nothing changes."""
    rollout = make_rollout("e.1", turns=2)
    store.offer(rollout, generated_tokens=5)
    [claimed] = store.claim("a", 9, seconds=30)
    other = tuple(replace(turn, teacher_logprobs=[-9.0] * len(turn.response_ids)) for turn in claimed.turns)
    assert store.put_scored(claimed)
    before = store.arrived(), store.outcomes(after=0)
    assert not store.put_scored(replace(claimed, turns=other))
    assert not store.put_scored(claimed)
    assert (store.arrived(), store.outcomes(after=0)) == before
    assert (store.renew("a", seconds=30), store.unscored(9)) == (0, [])
    assert not store.put_scored(make_rollout("e.2"))  # which nobody has offered


QUESTION = Question(7, "heat \ud800 an egg", [3, 9, 4], temperature=0.7, max_tokens=5, seed=2**32 - 1)


def test_a_question_is_answered_once_and_then_forgotten(store: AnyStore) -> None:
    """The oldest first, by one teacher at a time; an answer stays until whoever asked has heard it."""
    now = [0.0]
    store.clock = lambda: now[0]
    second, answer = QUESTION._replace(number=3), Answer([5, 6], [-0.1, -1e-300])
    for _ in range(2):
        store.ask("explorer-0", [QUESTION, second])
    assert store.claim_questions("a", 1, seconds=30) == [QUESTION]
    assert store.claim_questions("b", 9, seconds=30) == [second]
    now[0] = 30.0
    assert store.claim_questions("b", 9, seconds=30) == [QUESTION, second]  # a has died
    assert store.answer(7, answer)
    assert not store.answer(7, Answer([1], [-2.0]))
    assert store.answers([3, 7, 99]) == {7: answer}
    assert store.claim_questions("c", 9, seconds=40) == []
    store.forget_questions([7])
    assert store.answers([7]) == {}
    assert not store.answer(7, answer)
    assert store.renew("b", seconds=30) == 1


def test_what_a_dead_explorer_asked_is_forgotten(store: AnyStore) -> None:
    """All of it, answered or not, and nothing of the others."""
    store.ask("explorer-0", [QUESTION, QUESTION._replace(number=8)])
    store.ask("explorer-1", [QUESTION._replace(number=9)])
    store.answer(8, Answer([5], [-1.0]))
    store.forget_asker("explorer-0")
    assert store.answers([7, 8, 9]) == {}
    assert [question.number for question in store.claim_questions("a", 9, seconds=30)] == [9]
