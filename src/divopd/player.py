"""Rollouts that each go at their own pace: a slow environment or a long answer holds nobody else up.

A player has an environment for every rollout in flight and one student, and neither is waited for while the other has
something to do. Everything happens in one thread: environments work in their own processes (environments/pool.py) or
answer at once, and a model answers many prompts together, token by token (models/policy.py, Batching).
"""

from collections.abc import Callable
from dataclasses import dataclass

from divopd.environments.environment import Call
from divopd.environments.pool import EnvironmentPool
from divopd.explorer import Acting, Answered, Ask, Life, Played, Start, live, onward
from divopd.models.policy import Batching

LOOK_S = 0.05  # the longest wait for an environment while no model has anything to do


@dataclass(eq=False)
class _Place:
    """A rollout in flight: its life, how it is played, and the question that waits for the student."""

    life: Life
    acting: Acting
    start: Start
    held: Ask | None = None
    version: int = 0  # of the weights with which the student began its answer


class Player:
    """Plays rollouts, as many at once as its pool has places.

    `version` is that of the student's weights. It may change while rollouts are in flight: `hold` the student, step
    until it is `quiet`, fill its weights and `go_on` with the new version. Then a rollout's turns have several.
    """

    def __init__(
        self,
        pool: EnvironmentPool,
        student: Batching,
        *,
        version: int = 0,
        teacher_of: Callable[[str], Batching] | None = None,
    ) -> None:
        self.version = version
        self._pool, self._student, self._teacher_of = pool, student, teacher_of
        self._free = list(range(pool.size))[::-1]
        self._places: dict[int, _Place] = {}
        self._teachers: dict[int, Batching] = {}  # that are asked something, by identity
        self._held = False
        self._over: list[Played] = []
        self._early = False  # the last step left the models out, for the sake of rollouts that were to begin

    @property
    def free(self) -> int:
        """Places at which a rollout can begin."""
        return len(self._free)

    @property
    def in_flight(self) -> list[Start]:
        """The rollouts that are under way."""
        return [place.start for place in self._places.values()]

    @property
    def quiet(self) -> bool:
        """Whether the student has nothing to answer: its weights may change."""
        return not self._student.pending

    def begin(self, start: Start, acting: Acting) -> None:
        """Begin a rollout at a free place."""
        number = self._free.pop()
        self._places[number] = _Place(live(start, acting), acting, start)
        self._send(number, None)

    def hold(self) -> None:
        """Let no new question reach the student; what it is at it will answer."""
        self._held = True

    def go_on(self, *, version: int) -> None:
        """The student has the weights of this version: its questions reach it again."""
        assert self.quiet, "the weights changed while the student was answering"
        self.version = version
        self.release()

    def carry_on(self, *, version: int) -> None:
        """The student took newer weights while it was answering: answers that begin now have their version."""
        self.version = version
        self.release()

    def release(self) -> None:
        """Let the questions that are held reach the student, with the weights that it has."""
        self._held = False
        for number, place in self._places.items():
            if place.held is not None:
                ask, place.held = place.held, None
                self._ask(number, ask)

    def step(self) -> list[Played]:
        """Go on for about the time of one token; the rollouts that ended.

        If no model has anything to do it waits a moment for the environments. Rollouts that end with what these say
        come out at once: whatever begins in their places is read together with what the others have to read.
        """
        busy = not self.quiet or bool(self._teachers)
        for answer in self._pool.collect(timeout_s=0.0 if busy else LOOK_S):
            self._send(answer.place, answer.failure or answer.value)
        self._early = bool(self._over) and not self._early  # not twice in a row: what breaks at once holds nobody up
        if not self._early:
            self._step_models()
        over, self._over = self._over, []
        return over

    def _step_models(self) -> None:
        if not self.quiet:
            for key, response in self._student.step():
                assert isinstance(key, int)
                self._send(key, Answered(response, self._places[key].version))
        for teacher in list(self._teachers.values()):
            for key, response in teacher.step():
                self._send(key, Answered(response))
            if not teacher.pending:
                del self._teachers[id(teacher)]

    def _send(self, number: object, given: object) -> None:
        """A rollout has what it wanted: ask for what it wants next, or let it end."""
        assert isinstance(number, int)
        wish = onward(self._places[number].life, given)
        if isinstance(wish, Call):
            self._pool.submit(number, wish.method, wish.argument)
        elif isinstance(wish, Ask):
            self._ask(number, wish)
        else:
            del self._places[number]
            self._free.append(number)
            self._over.append(wish)

    def _ask(self, number: int, ask: Ask) -> None:
        place = self._places[number]
        if ask.actor == "teacher":
            assert self._teacher_of is not None, "a teacher is to act, and there is none"
            model = self._teacher_of(place.start.task)
            self._teachers[id(model)] = model
        elif self._held:
            place.held = ask
            return
        else:
            model, place.version = self._student, self.version
        acting = place.acting
        model.add(
            number, ask.prompt.ids, temperature=acting.temperature, max_tokens=acting.max_response_tokens, seed=ask.seed
        )
