"""Whether a teacher knows its way from where a student gets to, as `divopd evaluate TEACHER --after STUDENT` found out.

A teacher that is no better there than the student itself cannot teach it. The result is kept in the user's folder
(remembered.py) under the two models and the environment, and `divopd train` looks for it. Those of the embedded models
lie beside them.
"""

import hashlib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from divopd.config import Config
from divopd.errors import InputError
from divopd.models.model_files import PREFIX, model_folder
from divopd.remembered import keep, key_of, recall, remembered_file

KIND = "takeovers"
ENDS = 2**20  # bytes: so much from both ends of a file tells a model from another without reading gigabytes


@dataclass(frozen=True)
class Takeover:
    """Success rates in percent, both of the rollouts that the student had not ended after `after_turns` turns.

    `teacher_percent` of them succeeded with the teacher from there on, `student_percent` when the student went on.
    """

    teacher: str
    student: str
    environment: str
    after_turns: int
    rollouts: int
    teacher_percent: float
    student_percent: float

    @property
    def is_poor(self) -> bool:
        return self.rollouts > 0 and self.teacher_percent <= self.student_percent


def keep_takeover(found: Takeover, settings: dict[str, Any]) -> Path | None:
    """Keep what was found, with the settings of the environment; None if it cannot be kept here."""
    name = _file_name(found.teacher, found.student, found.environment, settings)
    file = remembered_file(KIND, name)
    return file if keep(file, asdict(found)) else None


def find_takeover(config: Config) -> Takeover | None:
    """What is known of the teacher and the student of a run; None if nobody has looked."""
    teacher = config.teacher.model
    name = _file_name(teacher, config.student.model, config.environment.name, config.environment.settings)
    places = [remembered_file(KIND, name)]
    if teacher.startswith(PREFIX):
        places.append(model_folder(teacher) / KIND / f"{name}.json")
    for kept in filter(None, map(recall, places)):
        try:
            return Takeover(**kept)
        except TypeError:  # of another version of divopd
            continue
    return None


def takeover_note(config: Config, *, how: str) -> str | None:
    """One line if nobody knows that the teacher can take over, or if it cannot; `how` are the options of `evaluate`.

    A teacher behind an address is left out: `divopd evaluate` cannot play with it.
    """
    teacher, student, environment = config.teacher.model, config.student.model, config.environment.name
    if config.teacher.url or teacher.startswith(("http://", "https://")):
        return None
    command = f"divopd evaluate {teacher} --after {student} {how}"
    try:
        found = find_takeover(config)
    except (InputError, OSError):  # a model that is not there is told elsewhere
        found = None
    if found is None:
        return (
            f"nobody has looked whether {teacher} knows its way from where {student} gets to on {environment}; "
            f"this looks: {command}"
        )
    if found.is_poor:
        return (
            f"{teacher} cannot take over from {student} on {environment}: after {found.after_turns} turns of the "
            f"student it succeeds in {found.teacher_percent:.0f} % of {found.rollouts} rollouts, the student itself in "
            f"{found.student_percent:.0f} %; use another teacher, or look again: {command}"
        )
    return None


def _file_name(teacher: str, student: str, environment: str, settings: dict[str, Any]) -> str:
    models = [_fingerprint(model_folder(model)) for model in (teacher, student)]
    return key_of({"models": models, "environment": environment.rpartition("/")[2], "settings": settings})


def _fingerprint(folder: Path) -> str:
    digest = hashlib.sha256()
    for file in sorted(folder.glob("*.safetensors")):
        with file.open("rb") as stream:
            size = file.stat().st_size
            digest.update(f"{file.name} {size}".encode() + stream.read(ENDS))
            stream.seek(max(0, size - ENDS))
            digest.update(stream.read())
    return digest.hexdigest()[:16]
