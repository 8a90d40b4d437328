"""The dry run: everything is resolved and checked, nothing is started, and no weight is loaded.

plan = make_plan(config, out=Path("runs/first"))
print("\n".join(plan.lines))
plan.refuse_problems()

A run that wants a GPU where there is none, or that names a machine, will run elsewhere: what this machine lacks is then
no problem, the plan says what the other one needs. What does not fit on the machine that is named is one.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from divopd.config import Config, LearnerPart, ModelPart
from divopd.environments import find_entry, missing_parts, tasks
from divopd.errors import DivopdError, InputError, MissingExtraError
from divopd.models.engine import ENGINES
from divopd.models.hub import is_hub_name
from divopd.models.model_files import ModelFacts, load_tokenizer, model_folder, read_model_facts, require_model
from divopd.models.openai_policy import OpenAIPolicy
from divopd.models.published import PUBLISHED
from divopd.models.taught import Taught, differences, read_taught
from divopd.pipeline.vocabularies import Vocabularies
from divopd.plan.fit import misfits, named, room_of
from divopd.plan.forecast import (
    ROLLOUTS,
    CharacterCodec,
    Forecast,
    Sample,
    disk_bytes,
    forecast,
    largest_sample,
    memory_by_actor,
    memory_by_device,
    model_bytes,
    sample_rollouts,
)
from divopd.plan.machine import free_disk, free_memory, in_bytes
from divopd.plan.roofline import roofline, words
from divopd.prompts import Codec
from divopd.run.loggers import require
from divopd.takeovers import takeover_note
from divopd.teacher import check_lengths, check_vocabularies

HOW = "--config CONFIG"
TO_COME = "not on this machine yet; divopd train downloads it from the Hub before it starts"


@dataclass
class Plan:
    """What will run, in lines for people, and what stands in its way, one line each."""

    elsewhere: bool = False  # it will not run on this machine
    lines: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def lack(self, what: str) -> None:
        """Something is missing on this machine."""
        if self.elsewhere:
            self.say("needs", what)
        else:
            self.problems.append(what)

    def say(self, title: str, text: str) -> None:
        self.lines.append(f"{title:<11} {text}")

    @contextmanager
    def noting(self, where: str) -> Iterator[None]:
        """An error in here is a problem of the plan."""
        try:
            yield
        except DivopdError as error:
            self.problems.append(f"{where}: {error}")

    def refuse_problems(self) -> None:
        """Raise an InputError that lists the problems, if there are any."""
        if len(self.problems) == 1:
            raise InputError(f"1 thing must be put right before this can run: {self.problems[0]}")
        if self.problems:
            count = len(self.problems)
            head = f"{count} things must be put right before this can run:"
            raise InputError("\n".join([head, *(f"  - {problem}" for problem in self.problems)]))


@dataclass(frozen=True)
class Found:
    """What is known of a model before it is loaded. One that is not there yet has no tokenizer; `absent` says why."""

    facts: ModelFacts
    tokenizer: Any | None
    absent: str = ""


@dataclass(frozen=True)
class Tasks:
    """The tasks of a run. `note` says it where the split has fewer to evaluate on than the configuration asks for."""

    train: list[str]
    evaluation: list[str]
    note: str = ""


def check_start(config: Config, *, how: str | None = HOW) -> list[str]:
    """What `divopd train` asks before it makes anything: an InputError if it cannot begin, else what to tell the user.

    The dry run asks the same of the same functions and lists all answers at once. `how` are the options by which
    `divopd evaluate` plays as this run does; without them nobody asks whether the teacher can take over.
    """
    require(config.loggers)
    _require_devices(config)
    _require_compiler(config)
    for key, model in local_models(config).items():
        try:
            require_model(model_folder(model))
        except InputError as error:
            raise InputError(f"{key}: {error}") from None
    _require_fit(config)
    taught, vocabularies = taught_otherwise(config, local_models(config)), Vocabularies(config).check()
    takeover = takeover_note(config, how=how) if how else None
    notes = [find_tasks(config).note, vocabularies, *taught, takeover]
    return [note for note in notes if note]


def _meeting_of(learner: LearnerPart) -> str:
    """Where the ranks are, where they meet, and when one of them is given up."""
    machines = "one machine" if learner.nodes == 1 else f"{learner.nodes} machines"
    port = f"port {learner.port}" if learner.port else "a free port"
    return (
        f"{learner.ranks} on {machines}, which meet at {learner.address}, {port}; one that is not heard for "
        f"{learner.hung_after_s:g} s is ended, and all start again"
    )


def check_disk(config: Config, out: Path) -> None:
    """Refuse to begin a run whose checkpoints and weights alone do not fit on the disk of `out`."""
    parts = model_bytes(config, read_model_facts(model_folder(config.student.model)))
    if sum(parts.values()) > free_disk(out):
        raise InputError(_too_large(parts, out))


def _too_large(parts: dict[str, int], out: Path) -> str:
    return (
        f"disk: the run writes about {in_bytes(sum(parts.values()))} ({_listed(parts)}), but only "
        f"{in_bytes(free_disk(out))} are free at {out}; choose another --out, set weights.keep, raise "
        "evaluation.every, or lower audits.keep_last"
    )


def _require_fit(config: Config) -> None:
    """A run that does not fit on the machine that its configuration names is refused, as by the dry run."""
    if config.machine.name:
        facts = {key: read_model_facts(model_folder(model)) for key, model in local_models(config).items()}
        student, longest = facts.pop("student.model"), config.prompts.max_prompt_tokens
        needs = (
            by(config, student, list(facts.values()), longest=longest) for by in (memory_by_actor, memory_by_device)
        )
        if found := misfits(config, *needs):
            raise InputError("; ".join(found))


def _require_devices(config: Config) -> None:
    """A GPU that is not here is told before a folder is made; the actors of a cluster have theirs elsewhere."""
    local = {"student.device": config.student.device} | (
        {} if config.teacher.url else {"teacher.device": config.teacher.device}
    )
    wanted = {} if config.cluster else {key: device for key, device in local.items() if device != "cpu"}
    for key, device in wanted.items():
        from divopd.models.transformers_policy import require_device

        try:
            require_device(device)
        except InputError as error:
            raise InputError(f"{key}: {error}") from None


def _require_compiler(config: Config) -> None:
    if config.learner.compile and not config.cluster:
        from divopd.models.compiled_layers import require_compiler

        require_compiler(config.student.device)


def local_models(config: Config) -> dict[str, str]:
    """The models of a run that lie in folders, by the key of the configuration that names them."""
    part = config.teacher
    models = {"student.model": config.student.model}
    models |= {} if part.url else {"teacher.model": part.model}
    models |= {f"teacher.by_task {pattern}": model for pattern, model in part.by_task.items()}
    return {key: model for key, model in models.items() if not model.startswith(("http://", "https://"))}


def taught_otherwise(config: Config, models: Mapping[str, str]) -> list[str]:
    """One line for each of these models, named by what they are for, that was taught another form than is used here."""
    used = Taught(config.environment.name, config.prompts.answer, config.prompts.actions)
    notes: list[str] = []
    for role, model in models.items():
        taught = read_taught(model_folder(model))
        if taught and (different := differences(taught, used)):
            notes.append(f"{role} {model} was taught {different}")
    return notes


def find_tasks(config: Config) -> Tasks:
    """The tasks to train and to evaluate on; InputError if there are none."""
    environment, wanted = config.environment, config.evaluation.tasks
    splits = (environment.train_split, environment.evaluation_split)
    train, held = (tasks(environment.name, split, **environment.settings) for split in splits)
    for split, found in zip(splits, (train, held), strict=True):
        if not found:
            raise InputError(f"the split {split} of {environment.name} has no tasks; expected some")
    if len(held) >= wanted:
        return Tasks(train, held[:wanted])
    fewer = f"evaluation.tasks is {wanted}, but the split {splits[1]} of {environment.name} has {len(held)} tasks"
    return Tasks(train, held, note=f"{fewer}: every evaluation plays all of them")


def make_plan(config: Config, *, out: Path, how: str = HOW) -> Plan:
    """Check a configuration against this machine and say what the run will do and cost. Nothing is written."""
    devices = {part.device for part in (config.student, config.teacher)}
    absent = sorted(d for d in devices if d.startswith("cuda") and not _cuda_memory(d))
    plan = Plan(elsewhere=bool(absent) or config.machine.name is not None)
    plan.say(
        "run", f"{config.method} on {config.environment.name}, {config.clock} clock, seed {config.seed}, into {out}"
    )
    if config.cluster:
        plan.say("cluster", f"Ray: {config.gpu_plan}; learner and store are on the machine that starts the run")
    if config.learner.ranks > 1:
        plan.say("ranks", _meeting_of(config.learner))
    for device in absent:
        plan.say("needs", f"{device}: torch sees no such device here, so this is a plan for another machine")
    train = _check_tasks(config, plan)
    student = _check_model(config, config.student, "student", plan)
    teacher = None if config.teacher.url else _check_model(config, config.teacher, "teacher", plan)
    if config.teacher.url:
        with plan.noting("teacher.url"):
            server = OpenAIPolicy(config.teacher.url, model=config.teacher.model, timeout_s=config.teacher.timeout_s)
            plan.say("teacher", f"{config.teacher.model} at {server.url}; the preflight asks it when the run starts")
    with plan.noting("teacher.model"):
        _compare_vocabularies(student, teacher)
    with plan.noting("models"):
        for note in taught_otherwise(config, local_models(config)):
            plan.say("note", note)
    if takeover := takeover_note(config, how=how):
        plan.say("note", takeover)
    local = {config.teacher.model: teacher.facts} if teacher else {}
    local |= _check_other_teachers(config, student, plan)
    _check_extras(config, plan)
    own = None
    with plan.noting("teacher.prompt"):
        own = _check_tokens(config, plan)
    with plan.noting(f"environment {config.environment.name}"):
        template = config.prompts.template
        codec = Codec(student.tokenizer, template=template) if student and student.tokenizer else CharacterCodec()
        is_program = config.environment.command is not None  # a dry run starts none: it may cost anything
        played = sample_rollouts(config, codec, train[:ROLLOUTS], own=own) if train and not is_program else None
        sample = largest_sample(config) if played is None else played
        if is_program:
            plan.say("note", "programs are not started by a dry run: what follows is the most that the keys allow")
        expected = forecast(config, sample)
        if train:
            _say_work(config, plan, sample, expected)
        if student:
            _check_memory(config, plan, student.facts, list(local.values()), sample)
            found = roofline(config, student.facts, teacher.facts if teacher else None, sample)
            for title, sentence in zip(("speed", ""), words(found, config) if found else (), strict=False):
                plan.say(title, sentence)
            _check_disk(plan, disk_bytes(config, student.facts, sample, expected), out)
    return plan


# ── checks ────────────────────────────────────────────────────────────────────────────────────────────────────────


def _check_tasks(config: Config, plan: Plan) -> list[str]:
    """The training tasks; empty if the environment cannot run here."""
    environment, evaluation = config.environment, config.evaluation
    missing = missing_parts(environment.name)
    if missing:
        install = find_entry(environment.name).install
        plan.lack(f"environment {environment.name}: missing {', '.join(missing)}; {install}")
        return []
    with plan.noting("environment"):
        found = find_tasks(config)
        plan.say(
            "tasks",
            f"{len(found.train):,} of {environment.train_split}, at most {environment.horizon} turns each; evaluation "
            f"on {len(found.evaluation)} of {environment.evaluation_split} every {evaluation.every} updates",
        )
        if found.note:
            plan.say("note", found.note)
        return found.train
    return []


def _check_model(config: Config, part: ModelPart, role: str, plan: Plan) -> Found | None:
    found = None
    with plan.noting(f"{role}.model"):
        found = _find_model(part.model, plan)
        if found is None:
            plan.say(role, f"{part.model}: {TO_COME}")
            return None
        size = f"{_count(found.facts.parameters)} parameters in {part.dtype} on {part.device}"
        kind, work = ENGINES[part.engine], "acting" if role == "student" else "scoring"
        engine = "" if kind.local else f", {work} in {kind.title}"
        plan.say(role, f"{part.model}: {size}{engine}{found.absent}")
        _check_context(config, found, role)
    return found


def _find_model(model: str, plan: Plan) -> Found | None:
    """What is known of a model; None for one of the Hub that was not downloaded yet and whose shape nobody knows."""
    folder = model_folder(model)
    if is_hub_name(model) and not folder.exists():
        shape = PUBLISHED.get(folder.name.partition("@")[0])
        return None if shape is None else Found(shape, None, f"; {TO_COME}")
    if plan.elsewhere and not folder.exists() and folder.name in PUBLISHED:
        return Found(PUBLISHED[folder.name], None, "; not here yet")
    return Found(read_model_facts(folder), load_tokenizer(folder))


def _check_context(config: Config, found: Found, role: str) -> None:
    check_lengths(
        found.facts,
        role=role,
        max_prompt_tokens=config.prompts.max_prompt_tokens,
        max_response_tokens=config.explorer.max_response_tokens,
    )


def _compare_vocabularies(student: Found | None, teacher: Found | None) -> None:
    """Refuse a teacher with other tokens. Embedded models share a tokenizer, and a server is asked later."""
    if student and teacher and student.tokenizer and teacher.tokenizer:
        check_vocabularies(student.tokenizer, teacher.tokenizer)


def _check_tokens(config: Config, plan: Plan) -> Codec | None:
    """Say what is done about ids that the teacher does not know; how its own prompts are written, if it has some."""
    vocabularies = Vocabularies(config)
    if plan.problems or not all(model_folder(model).exists() for model in local_models(config).values()):
        return None
    if note := vocabularies.check():
        plan.say("note", note)
    return vocabularies.teacher_codecs().get("teacher")


def _check_other_teachers(config: Config, student: Found | None, plan: Plan) -> dict[str, ModelFacts]:
    """The teachers of some tasks that lie in folders, by folder."""
    found = {}
    for pattern, model in config.teacher.by_task.items():
        plan.say("", f"tasks {pattern}: {model}")
        if not model.startswith(("http://", "https://")):
            with plan.noting(f"teacher.by_task {pattern}"):
                teacher = _find_model(model, plan)
                if teacher is None:
                    plan.say("", TO_COME)
                    continue
                found[model] = teacher.facts
                _check_context(config, teacher, "teacher")
                _compare_vocabularies(student, teacher)
    return found


def _check_extras(config: Config, plan: Plan) -> None:
    wanted = {"torch": "train", "transformers": "train", "safetensors": "train"}
    if config.student.lora is not None:
        wanted["peft"] = "lora"
    for part in (config.student, config.teacher):
        if not ENGINES[part.engine].local:
            wanted[ENGINES[part.engine].extra] = ENGINES[part.engine].extra
    if config.cluster:
        wanted["ray"] = "ray"
    for module, extra in wanted.items():
        if find_spec(module) is None:
            plan.lack(str(MissingExtraError(module, extra)))
    for name in config.loggers:
        try:
            require([name])
        except MissingExtraError as error:
            plan.lack(str(error))
    try:
        _require_compiler(config)
    except InputError as error:
        plan.lack(str(error))


def _check_memory(
    config: Config, plan: Plan, student: ModelFacts, teachers: Sequence[ModelFacts], sample: Sample
) -> None:
    longest = config.prompts.max_prompt_tokens if config.machine.name else sample.longest_prompt
    by_actor = memory_by_actor(config, student, teachers, longest=longest)
    by_device = memory_by_device(config, student, teachers, longest=longest)
    for role, parts in by_actor.items() if config.cluster else ():
        room = room_of(config, role)
        limit = f" of {in_bytes(room)}" if room else ""
        plan.say("memory", f"about {in_bytes(sum(parts.values()))}{limit} for each {role} ({_listed(parts)})")
    for device, parts in by_device.items() if not config.cluster else ():
        _check_device(plan, device, parts)
    plan.problems.extend(misfits(config, by_actor, by_device))
    if config.machine.name and not plan.problems:
        gpus = "every role in the memory of its GPUs, all GPUs counted"
        plan.say("fits", f"on {named(config)}: {gpus if config.machine.gpus else 'all of it in its memory'}")


def _check_device(plan: Plan, device: str, parts: dict[str, int]) -> None:
    free = free_memory() if device == "cpu" else _cuda_memory(device)
    total = sum(parts.values())
    plan.say("memory", f"about {in_bytes(total)} on {device} ({_listed(parts)}); {_free(free)}")
    if free and total > free:
        plan.lack(
            f"memory: the run needs about {in_bytes(total)} on {device}, where {in_bytes(free)} are free; lower "
            "learner.max_tokens, explorer.rollouts_in_flight or evaluation.in_flight, or set learner.activations "
            "to recompute, or student.lora"
        )


def _check_disk(plan: Plan, parts: dict[str, int], out: Path) -> None:
    free, total = free_disk(out), sum(parts.values())
    plan.say("disk", f"about {in_bytes(total)} ({_listed(parts)}); {_free(free)}")
    if total > free:
        plan.lack(_too_large(parts, out))


def _cuda_memory(device: str) -> int | None:
    """Free bytes of a CUDA device, or None without it."""
    import torch

    number = int(device.partition(":")[2] or 0)
    return torch.cuda.mem_get_info(number)[0] if torch.cuda.device_count() > number else None


# ── words ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _say_work(config: Config, plan: Plan, sample: Sample, expected: Forecast) -> None:
    learner, composer = config.learner, config.composer
    compiled = ", layers compiled by torch: the first updates take longer" if learner.compile else ""
    plan.say("updates", f"{learner.updates} of {composer.batch_size} rows, learning rate {learner.lr:g}{compiled}")
    plan.say(
        "prompts",
        f"a random player makes {sample.turns:.0f} turns, its prompts reach {sample.longest_prompt:,} tokens; "
        f"{sample.truncated_share:.0%} of its turns do not fit into {config.prompts.max_prompt_tokens:,}",
    )
    if sample.own_scored_once is not None:
        plan.say("", f"the teacher reads its own prompts: {sample.own_scored_once:,.0f} tokens of a rollout, prefixes "
                 f"that turns share once; {sample.scored_once:,.0f} if it read the student's")  # fmt: skip
    plan.say("tokens", f"about {_count(expected.trained_tokens)} trained, {_count(expected.scored_tokens)} scored, "
             f"{_count(expected.generated_tokens)} generated in {_count(expected.rollouts)} rollouts")  # fmt: skip
    if config.clock == "simulated":
        plan.say("queue", f"{expected.load:.1f} turns arrive for each that is trained")
        plan.say("time", f"about {_duration(expected.seconds)} on the virtual clock")
    else:
        plan.say("time", f"about {_duration(expected.seconds)} at the speeds under costs; live, this machine decides")


def _listed(parts: dict[str, int]) -> str:
    return ", ".join(f"{name} {in_bytes(size)}" for name, size in parts.items() if size)


def _free(amount: int | None) -> str:
    return "free memory is not known" if amount is None else f"{in_bytes(amount)} free"


def _count(number: float) -> str:
    for unit, size in (("billion", 1e9), ("million", 1e6)):
        if number >= size:
            return f"{number / size:.1f} {unit}"
    return f"{number:,.0f}"


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
