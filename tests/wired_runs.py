"""The runs that the tests of the wires look at: each is made once a session, on the clock that a test asks for."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from divopd.turns import Turn
from recorded_run import Asked, RecordedRun, settings, train
from recording_teacher import RecordingTeacher
from word_model import ids_of, prompt_of, response_of, said, save_model

OPTIMIZATION = {  # other values than the defaults, each of which shows in the weights
    "lr": 1e-2,
    "betas": [0.8, 0.95],
    "weight_decay": 0.1,
    "beta": 1e-6,  # gradients are then as small as AdamW's epsilon: their scale matters
    "max_grad_norm": 2e-6,
}


@dataclass(frozen=True)
class Models:
    """A student, one whose answers vary less, a teacher, and the url of one that records."""

    student: Path
    sharp: Path
    teacher: Path
    url: str


def adaptive(models: Models) -> dict[str, Any]:
    """TurnOPD, whose rollouts all have two turns: first because they succeed, later because they are cut."""
    return settings(
        models.student,
        teacher=models.teacher,
        room="ChangingRoom",
        method="turnopd",
        environment={"horizon": 6},
        composer={"batch_size": 4},
        learner={"updates": 10, **OPTIMIZATION},
        explorer={"rollouts_in_flight": 1, "max_response_tokens": 5},
        evaluation={"temperature": 0.0},
        recovery={"patience": 1, "takeover": 2},  # not of this method
        seed=9,  # its first rollouts have responses of several lengths: row weights differ
    )


def adaptive_live(models: Models) -> dict[str, Any]:
    """The same in real time, with rollouts that last longer than the weights that they began with."""
    config = adaptive(models)
    config["environment"]["name"] = config["environment"]["name"].replace("ChangingRoom", "SpanningRoom")
    config["learner"]["updates"] = 5
    return config


def helped(models: Models) -> dict[str, Any]:
    """Recovery from version 1 on, for students that are stuck from their first turn on."""
    return settings(
        models.student,
        teacher=models.url,
        room="StuckRoom",
        method="divopd-r",
        recovery={"patience": 2, "takeover": 1, "warmup": 1},
        composer={"batch_size": 4, "max_staleness": 0},
        explorer={"rollouts_in_flight": 2, "temperature": 0.7},
        evaluation={"temperature": 0.0},
    )


def helped_live(models: Models) -> dict[str, Any]:
    """The same in real time, with two teachers that share scoring and acting."""
    config = helped(models)
    config["teacher"]["count"] = 2
    return config


def growing(models: Models) -> dict[str, Any]:
    """TCOD, which allows one turn more after every two explorer steps of 16 rollouts."""
    return settings(
        models.student,
        teacher=models.teacher,
        method="tcod-f2b",
        environment={"horizon": 3},
        curriculum={"growth": 2},
        composer={"batch_size": 40},
        explorer={"rollouts_in_flight": 5},
    )


def retreating(models: Models) -> dict[str, Any]:
    """TCOD back to front: of the expert's four actions two are replayed in the first step of 4 rollouts, then one."""
    return settings(
        models.student,
        teacher=models.teacher,
        room="GuidedRoom",
        method="tcod-b2f",
        environment={"horizon": 6},
        curriculum={"retreat": 1, "rollouts_per_step": 4},
        composer={"batch_size": 20},
    )


def focused(models: Models) -> dict[str, Any]:
    """Rollouts of several lengths, rows with weights, and prompts that do not fit."""
    return settings(
        models.student,
        teacher=models.teacher,
        room="WinnableRoom",
        method="divopd-focus",
        prompts={"max_prompt_tokens": 30},
        learner={**OPTIMIZATION, "updates": 4},
    )


def still(models: Models) -> dict[str, Any]:
    """A student that does not learn: whatever changes is not its weights' doing."""
    return settings(
        models.sharp,
        teacher=models.teacher,
        room="WinnableRoom",
        method="divopd",
        prompts={"max_prompt_tokens": 40},
        environment={"horizon": 6},
        learner={"lr": 1e-12, "updates": 6},
        explorer={"temperature": 1.5},
        evaluation={"temperature": 0.4, "tasks": 4},
    )


def still_vanilla(models: Models) -> dict[str, Any]:
    return still(models) | {"method": "vanilla"}


def still_seeded(models: Models) -> dict[str, Any]:
    return still(models) | {"seed": 1}


def shared_live(models: Models) -> dict[str, Any]:
    """Evaluations on the explorer's engine, in one of its two places beside training rollouts."""
    config, explorer = still(models), {"rollouts_in_flight": 2}
    return config | {"learner": {**config["learner"], "updates": 3}, "explorer": {**config["explorer"], **explorer}}


def apart_live(models: Models) -> dict[str, Any]:
    """The same with an engine of their own."""
    config = shared_live(models)
    return config | {"evaluation": {**config["evaluation"], "share": None}}


def turning(models: Models) -> dict[str, Any]:
    """Weights change between two turns of a rollout."""
    return settings(
        models.student,
        teacher=models.teacher,
        room="TurningRoom",
        composer={"batch_size": 4},
        learner={"updates": 4},
        explorer={"rollouts_in_flight": 1, "versions": "turn"},
        evaluation={"every": 100},
    )


def turning_simulated(models: Models) -> dict[str, Any]:
    """The same in virtual time: a rollout takes longer than three updates."""
    config = turning(models)
    config["environment"]["name"] = config["environment"]["name"].replace("TurningRoom", "Room")
    config["explorer"]["rollouts_in_flight"] = 3
    return config | {"costs": {"rollout_s": 4.0, "update_s": 1.2, "jitter": 0.3}}


def seldom(models: Models) -> dict[str, Any]:
    """Explorers get every second version."""
    return settings(
        models.student,
        teacher=models.teacher,
        composer={"batch_size": 4},
        learner={"updates": 6},
        explorer={"sync_interval": 2, "rollouts_in_flight": 1},
        evaluation={"temperature": 0.0},
    )


RUNS: dict[tuple[str, str], Callable[[Models], dict[str, Any]]] = {
    ("adaptive", "simulated"): adaptive,
    ("adaptive", "live"): adaptive_live,
    ("helped", "simulated"): helped,
    ("helped", "live"): helped_live,
    ("growing", "simulated"): growing,
    ("growing", "live"): growing,
    ("retreating", "simulated"): retreating,
    ("retreating", "live"): retreating,
    ("focused", "simulated"): focused,
    ("still", "simulated"): still,
    ("still vanilla", "simulated"): still_vanilla,
    ("still seeded", "simulated"): still_seeded,
    ("seldom", "simulated"): seldom,
    ("shared", "live"): shared_live,
    ("apart", "live"): apart_live,
    ("turning", "live"): turning,
    ("turning", "simulated"): turning_simulated,
}


@dataclass(frozen=True)
class Wired:
    """A run, what was asked for, and the teacher behind a url, which some runs have."""

    run: RecordedRun
    config: dict[str, Any]
    teacher: RecordingTeacher

    @property
    def limit(self) -> int:
        """The most tokens that a response may have."""
        return self.config["explorer"]["max_response_tokens"]

    def played(self) -> list[tuple[list[Turn], Asked]]:
        """The rows of every training rollout in the store, beside what a room saw of it: rollout r000012 began 13th."""
        asked = self.run.asked("train")
        pairs = [(rows, asked[int(name.lstrip("r"))]) for name, rows in self.run.rollouts().items()]
        for rows, one in pairs:
            assert (rows[0].task, rows[0].rollout_turns) == (one.task, len(one.actions))
            assert all(one.actions[row.turn] == said(row.response_ids) for row in rows)
        return pairs

    def evaluated(self) -> dict[int, list[Asked]]:
        """What the rooms saw of every evaluation, by policy version: evaluations come one after the other."""
        asked, size = self.run.asked("test"), self.config["evaluation"]["tasks"]
        versions = sorted(self.run.metrics("evaluation"))
        assert len(asked) == size * len(versions)
        return {version: asked[size * n :][:size] for n, version in enumerate(versions)}


def history(one: Asked, turn: int, *, limit: int) -> list[int]:
    """The whole prompt of a turn of a rollout, from what its room said and heard."""
    return prompt_of(one.texts[: turn + 1], [response_of(action, limit=limit) for action in one.actions[:turn]])


class WiredRuns:
    """Makes each run when it is first wanted."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.student = save_model(folder / "student", seed=0, sharp=0.6)
        self.sharp = save_model(folder / "sharp", seed=0, sharp=1.2)
        self.teacher = save_model(folder / "teacher", seed=1)
        self._made: dict[tuple[str, str], Wired] = {}

    def get(self, name: str, clock: str = "simulated") -> Wired:
        if (name, clock) not in self._made:
            with RecordingTeacher(ids_of("help <end>")) as teacher:
                models = Models(self.student, self.sharp, self.teacher, teacher.url)
                config = RUNS[name, clock](models) | {"clock": clock}
                run = train(self.folder / f"{name}-{clock}".replace(" ", "-"), config)
            assert run.code == 0
            self._made[name, clock] = Wired(run, config, teacher)
        return self._made[name, clock]
