"""Which tokens the student and the teachers of a run share, and who reads a rollout how (specification §6.2).

No weight is loaded for it: the tokenizers in the models' folders say it all.
"""

import re
from collections.abc import Callable
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from divopd.config import Config
from divopd.environments import Observation
from divopd.errors import AlignmentError, InputError
from divopd.models.model_files import load_tokenizer, model_folder, read_model_facts, require_model
from divopd.prompts import Codec, Conversation, Reader
from divopd.prompts.chat import Chat
from divopd.prompts.formats import EXAMPLES
from divopd.prompts.vocabulary import foreign_ids, named
from divopd.teacher import check_shared_prompt, check_vocabularies, first_fitting


class Vocabularies:
    """The tokenizers of a run. One that is not on this machine is None: that of a server may lie in `teacher.model`."""

    def __init__(self, config: Config) -> None:
        self._config, self._load = config, cache(load_tokenizer)

    @cached_property
    def student(self) -> Any:
        folder = model_folder(self._config.student.model)
        require_model(folder)
        return self._load(folder)

    @cached_property
    def default_teacher(self) -> Any | None:
        part = self._config.teacher
        if part.url:  # the server's name of the model is often the folder that it was loaded from
            return self._load(Path(part.model)) if (Path(part.model) / "tokenizer_config.json").is_file() else None
        return self._found(part.model)

    @cached_property
    def by_task(self) -> dict[str, Any | None]:
        """The tokenizers of teachers that are there for some tasks only, by pattern."""
        return {pattern: self._found(model) for pattern, model in self._config.teacher.by_task.items()}

    def _found(self, model: str) -> Any | None:
        folder = None if is_server(model) else model_folder(model)
        return self._load(folder) if folder and folder.exists() else None

    @property
    def roles(self) -> dict[str, Any | None]:
        """Every teacher's tokenizer, by what messages call it."""
        return {"teacher": self.default_teacher, **{teacher_of(pattern): t for pattern, t in self.by_task.items()}}

    @cached_property
    def foreign(self) -> dict[int, list[int]]:
        """The ids that the student could sample and some teacher's tokenizer does not have, and how it reads them."""
        rows = read_model_facts(model_folder(self._config.student.model)).vocabulary
        found: dict[int, list[int]] = {}
        for teacher in self.roles.values():
            found |= foreign_ids(self.student, teacher, rows=rows) if teacher is not None else {}
        return found

    @property
    def forbidden(self) -> tuple[int, ...]:
        """The ids that the student must not sample.

        None where a teacher has another vocabulary altogether: such a pair cannot be trained, but the student can be
        evaluated.
        """
        try:
            for tokenizer in self.roles.values():
                if tokenizer is not None:
                    check_vocabularies(self.student, tokenizer)
        except AlignmentError:
            return ()
        return tuple(self.foreign)

    def student_codec(self) -> Codec:
        """How the student's prompts are written, and how it reads a teacher that acted."""
        template, text = self._config.prompts.template, str(self.student.chat_template)
        unused = [name for name in template if not re.search(rf"\b{re.escape(name)}\b", text)]
        if unused:
            raise InputError(
                f"prompts.template has {', '.join(unused)}, which the student's chat template does not use; expected "
                "an argument of that template, as its model's page names them"
            )
        spelling: dict[int, list[int]] = {}
        for teacher in self.roles.values():
            spelling |= foreign_ids(teacher, self.student) if teacher is not None else {}
        return Codec(self.student, template=template, spelling=spelling)

    def teacher_reader(self) -> Callable[[str], Reader] | None:
        """How the teacher of a task reads a rollout; None: it reads the student's prompts."""
        if self._config.teacher.prompt == "shared":
            return None
        readers = {role: Reader(self._config.prompts, codec) for role, codec in self.teacher_codecs().items()}
        by_task = {pattern: readers[teacher_of(pattern)] for pattern in self.by_task}
        return lambda task: first_fitting(task, by_task, default=readers["teacher"])

    def teacher_codecs(self) -> dict[str, Codec]:
        """How prompts are written that are a teacher's own, by role; empty if prompts are shared."""
        if self._config.teacher.prompt == "shared":
            return {}
        hidden = [role for role, tokenizer in self.roles.items() if tokenizer is None]
        if hidden:
            raise InputError(
                f"teacher.prompt is own, but the tokenizer of the {hidden[0]} is not on this machine; expected it in "
                "the folder that teacher.model names, or set teacher.prompt to shared"
            )
        template = self._config.prompts.template
        return {
            role: Codec(t, template=template, spelling=self.foreign) for role, t in self.roles.items() if t is not None
        }

    def check(self) -> str | None:
        """Refuse other tokenizers and shared prompts that a teacher cannot read; else say what its gaps lead to."""
        prompts = self._own_texts()
        own = self.teacher_codecs()
        if self._config.environment.command is not None:
            part = self._config.environment
            chat = Chat(self.student_codec(), tools=part.tools, parser=part.tool_parser)
            chat.check_tools()
            prompts.append(chat.example())
        for role, tokenizer in self.roles.items():
            if tokenizer is not None:
                check_vocabularies(self.student, tokenizer, role=role)
                if role not in own:
                    for prompt in prompts:
                        check_shared_prompt(prompt, self.student, tokenizer, role=role)
        tokens = named(self.foreign, self.student)
        if not tokens:
            return None
        own = self._config.teacher.prompt == "own"
        reads = "it reads prompts of its own" if own else "shared prompts have none of them"
        return f"the student never samples {tokens}: the teacher's tokenizer does not have them; {reads}"

    def _own_texts(self) -> list[list[int]]:
        """A first and a later prompt of the student: the system text, the template's marks and the format's words."""
        style = self._config.prompts
        seen = Observation(EXAMPLES[style.format])
        conversation = Conversation(style, self.student_codec(), seen)
        first = conversation.prompt().ids
        conversation.add([], None, seen)
        return [first, conversation.prompt().ids]


def teacher_of(pattern: str) -> str:
    """What messages call the teacher of some tasks."""
    return f"teacher of {pattern}"


def is_server(model: str) -> bool:
    """Whether a teacher is an address instead of a folder."""
    return model.startswith(("http://", "https://"))
