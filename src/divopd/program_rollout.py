"""A rollout of an agent program: every chat completion that it asks for is a turn (specification §6.6).

It lives as any rollout does (explorer.py): it yields what it wants next and is sent the answer. The environment's
observations are the program's calls; the prompt of a turn is what its call says, and nothing is stitched together.
What was asked and answered is written down before the program hears of it.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Generator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from divopd.config import Config
from divopd.environments import Observation
from divopd.environments.environment import Call
from divopd.environments.programs import replies
from divopd.environments.programs.endpoint import MOST_TOLD
from divopd.errors import AlignmentError, EnvironmentFailure, ProgramFailure
from divopd.explorer import Acting, Actor, Answered, Ask, Played, PlayedTurn, Start
from divopd.models.policy import Response
from divopd.prompts import Codec, Prompt
from divopd.prompts.chat import Chat, readable
from divopd.prompts.tool_calls import Said
from divopd.recovery import ProgressWatch, RecoveryState
from divopd.store.faces import Calls

Json = dict[str, Any]
MOST_REFUSED = 100  # of a program that asks again and again for what it cannot get
CUT = "the rollout was cut at its most calls"


@dataclass(frozen=True)
class Programs:
    """How programs are answered. `calls` keeps what was asked and answered; None: nobody does, as in an evaluation.

    `version` is that of the student's weights, where a player does not say it.
    """

    chat: Chat
    max_prompt_tokens: int
    calls: Calls | None = None
    version: int | None = None
    train_undelivered: bool = False

    def rollout(self, start: Start, acting: Acting) -> "ProgramRollout":
        return ProgramRollout(start, acting, self)


def programs_of(config: Config, codec: Codec, *, calls: Calls | None = None) -> Programs | None:
    """How the programs of a run are answered; None: its environment is none."""
    part = config.environment
    if part.command is None:
        return None
    chat = Chat(codec, tools=part.tools, parser=part.tool_parser)
    most = config.prompts.max_prompt_tokens
    return Programs(chat, most, calls=calls, train_undelivered=part.undelivered == "train")


class ProgramRollout:
    """What is known of a rollout so far."""

    def __init__(self, start: Start, acting: Acting, programs: Programs) -> None:
        self.start, self.acting, self.programs = start, acting, programs
        self.turns: list[PlayedTurn] = []
        self.call_numbers: list[int] = []  # of the turns, as the endpoint counts
        self.first: Observation | None = None
        self.failure: str | None = None
        self.unfinished: Callable[[Observation], PlayedTurn] | None = None
        self.recovery = RecoveryState(acting.recovery) if acting.recovery else None
        self.progress = ProgressWatch()
        self.attempt = 0
        self.refused: list[str] = []  # why no prompt could be made of a call
        self.parsed = Counter[str]()  # calls that were answered, by the status of the answer

    def begin(self) -> Generator[Call | Ask, Any, None]:
        """Start the program, and wait for its first call."""
        calls = self.programs.calls
        if calls is not None:
            self.attempt = calls.begin_attempt(self.start.number, {"task": self.start.task, "depth": self.start.depth})
        yield from self._see((yield Call("reset", self.start.task)))
        self.first = self.seen

    @property
    def over(self) -> bool:
        return self.seen.done

    def turn(self) -> Generator[Call | Ask, Any, None]:
        """Whose turn it is answers the call; or the rollout is cut, if it has had its turns."""
        if len(self.turns) >= self.start.depth:
            self._end((yield Call("step", json.dumps({"cut": CUT}))))
            return
        actor, request, prompt = self.actor, self.request, self.prompt
        self._intend(actor, request, prompt)
        answered: Answered = yield Ask(actor, prompt, self._sampling_seed)
        response = _shortened(answered.response, request["asked"])
        said = self.programs.chat.read(self.acting.codec.adopted(response.ids), request["tools"])
        body = self._completion(request, prompt, response, said)
        self._record(actor, request, prompt, response, said, body, answered.version)
        action = _action_of(said)

        def finished(seen: Observation) -> PlayedTurn:
            return PlayedTurn(actor, prompt, response, action, seen, version=answered.version)

        self.unfinished = finished
        self.call_numbers.append(request["call"])
        self.parsed[said.status] += 1
        before = _situation(self.seen, said)
        if self.recovery:
            yield from self.progress.expect(action, before)
        yield from self._see((yield Call("step", json.dumps({"status": 200, "body": body}))))
        if self.recovery:
            made = yield from self.progress.made(action, _situation(self.seen, said))
            self.recovery.record(actor, progress=made)
        # a call that does not parse counts as an action that was not understood
        self.turns.append(finished(replace(self.seen, valid=said.status != "unparsed")))
        self.unfinished = None
        if self.seen.done:
            self._end(self.seen)

    def _see(self, seen: Observation) -> Generator[Call | Ask, Any, None]:
        """Take what the program asks for next. A call that no prompt can be made of is refused, and is no turn."""
        while not seen.done:
            request = json.loads(seen.text)
            try:
                ids = self.programs.chat.prompt(request["messages"], request["tools"])
                if len(ids) > self.programs.max_prompt_tokens:
                    raise AlignmentError(
                        f"the prompt has {len(ids)} tokens; expected at most {self.programs.max_prompt_tokens} "
                        "(prompts.max_prompt_tokens), the context length of this student"
                    )
            except AlignmentError as refused:
                self.refused.append(str(refused))
                if len(self.refused) > MOST_REFUSED:
                    ended = yield Call("step", json.dumps({"cut": "too many of its calls were refused"}))
                    raise ProgramFailure(
                        f"more than {MOST_REFUSED} calls of the program were refused; the last one: {refused}",
                        told=json.loads(ended.text),
                    ) from None
                code = "context_length_exceeded" if "max_prompt_tokens" in str(refused) else "template"
                error = {"status": 400, "body": replies.error(str(refused), code=code)}
                seen = yield Call("step", json.dumps(error))
            else:
                self.request, self.prompt = request, Prompt(ids, truncated=False)
                break
        self.seen = seen
        if seen.done and not self.turns and self.unfinished is None:
            self._end(seen)

    @property
    def actor(self) -> Actor:
        late = self.acting.takeover_at is not None and len(self.turns) >= self.acting.takeover_at
        helped = self.recovery is not None and self.recovery.teacher_acts
        return "teacher" if late or helped else "student"

    @property
    def _sampling_seed(self) -> int:
        entropy = [self.acting.seed, self.start.number, len(self.turns)]
        return int(np.random.SeedSequence(entropy).generate_state(1)[0])

    def _completion(self, request: Json, prompt: Prompt, response: Response, said: Said) -> Json:
        name = f"{self.start.number}-{len(self.turns)}"
        calls = [
            {
                "id": _tool_call_id(name, n),
                "type": "function",
                "function": call | {"arguments": json.dumps(call["arguments"])},
            }
            for n, call in enumerate(said.calls)
        ]
        ended = bool(response.ids) and (
            response.ids[-1] == self.acting.codec.stop or len(response.ids) < _limit(self.acting, request["asked"])
        )
        finish = "tool_calls" if calls else "stop" if ended else "length"
        return replies.completion(
            call=name,
            model=request["model"],
            content=said.content,
            calls=calls,
            finish=finish,
            read=len(prompt.ids),
            written=len(response.ids),
        )

    # ── what is written down ──────────────────────────────────────────────────────────────────────────────────────

    def _intend(self, actor: Actor, request: Json, prompt: Prompt) -> None:
        if self.programs.calls is not None:
            intent = {"agent": request["agent"], "actor": actor, "prompt_ids": prompt.ids, "asked": request["asked"]}
            self.programs.calls.intend_call(self.start.number, self.attempt, len(self.turns), intent)

    def _record(
        self,
        actor: Actor,
        request: Json,
        prompt: Prompt,
        response: Response,
        said: Said,
        body: Json,
        version: int | None,
    ) -> None:
        if self.programs.calls is None:
            return
        acting, chat = self.acting, self.programs.chat
        known = self.programs.version if version is None else version
        known = known if actor == "student" else None  # a teacher has none
        applied = {"temperature": acting.temperature, "top_p": 1.0, "max_tokens": _limit(acting, request["asked"])}
        record = {
            "agent": request["agent"],
            "actor": actor,
            "prompt_ids": prompt.ids,
            "completion_ids": response.ids,
            "logprobs": response.logprobs.tolist(),
            "mask": [0] * len(prompt.ids) + [1] * len(response.ids),  # over prompt and completion
            "first_version": known,  # weights change between two calls only
            "last_version": known,
            "asked": request["asked"],
            "applied": applied | {"seed": self._sampling_seed},
            "template": _digest(str(chat.codec.tokenizer.chat_template)),
            "tools": [tool["function"]["name"] for tool in request["tools"]],
            "tools_way": chat.tools,
            "parser": chat.parser,
            "parsed": said.status,
            "action": _action_of(said),
            "finish": body["choices"][0]["finish_reason"],
            "streamed": request["stream"],
        }
        self.programs.calls.record_call(self.start.number, self.attempt, len(self.turns), record)

    def _end(self, seen: Observation) -> None:
        """The attempt is over: mark the turns whose answers the program has not heard."""
        self.seen = seen
        if self.turns and not self.turns[-1].seen.done:
            self.turns[-1] = replace(self.turns[-1], seen=replace(seen, valid=self.turns[-1].seen.valid))
        self._close(json.loads(seen.text))

    def _close(self, told: Json) -> None:
        lost = set(told.get("undelivered", ()))
        undelivered = [turn for turn, number in enumerate(self.call_numbers[: len(self.turns)]) if number in lost]
        for turn in undelivered:
            self.turns[turn] = replace(self.turns[turn], delivered=self.programs.train_undelivered)
        if self.programs.calls is not None:
            ended = {
                "ended": self.failure or told.get("ended", ""),
                "broke_off": self.failure is not None,
                "undelivered": undelivered,
                "refused": [*told.get("refused", []), *self.refused][:MOST_TOLD],
                "output": told.get("output", ""),
                "counts": self._counts(refusals=told.get("refusals", 0), undelivered=len(undelivered)),
            }
            self.programs.calls.end_attempt(self.start.number, self.attempt, ended)

    def _counts(self, *, refusals: int, undelivered: int) -> dict[str, int]:
        """The share of this attempt in the run's ProgramFigures."""
        calls = self.parsed.total()
        return {
            "broke_off": int(self.failure is not None),
            "calls": calls,
            "with_tools": calls - self.parsed["no_tools"],
            "tool_calls": self.parsed["calls"],
            "unparsed": self.parsed["unparsed"],
            "refused": refusals + len(self.refused),
            "undelivered": undelivered,
        }

    def fail(self, failure: EnvironmentFailure) -> None:
        """The program died, or was killed; the turn that it was at is the last one."""
        self.failure = str(failure)
        self.seen = Observation(self.failure, done=True)
        if self.unfinished is not None:
            self.turns.append(self.unfinished(self.seen))
        self._close(getattr(failure, "told", {}))

    def result(self) -> Played:
        """What was seen is told in words, except in a rollout that broke off: it may have to be told again."""
        first, turns = self.first or self.seen, self.turns
        if self.failure is None:
            first = replace(first, text=readable(first.text))
            turns = [replace(turn, seen=replace(turn.seen, text=readable(turn.seen.text))) for turn in turns]
        return Played(self.start, first, tuple(turns), self.failure)


def _limit(acting: Acting, asked: Json) -> int:
    """Tokens that an answer may have: a program may ask for less than the configuration allows."""
    wanted = [asked[name] for name in ("max_tokens", "max_completion_tokens") if name in asked]
    return min([acting.max_response_tokens, *wanted])


def _shortened(response: Response, asked: Json) -> Response:
    """The same draw, cut where the program wants it: these are the tokens that a shorter limit would have given."""
    wanted = [asked[name] for name in ("max_tokens", "max_completion_tokens") if name in asked]
    most = min([len(response.ids), *wanted])
    return Response(response.ids[:most], response.logprobs[:most])


def _action_of(said: Said) -> str:
    """What was done, in a line: the tools that were called, or the text."""
    if said.calls:
        return "; ".join(f"{call['name']}({json.dumps(call['arguments'], ensure_ascii=False)})" for call in said.calls)
    return said.content or ""


def _situation(seen: Observation, said: Said) -> Observation:
    """For recovery: what the program told since the last answer, and whether that one could be parsed."""
    text = readable(seen.text)
    return replace(seen, text=text, allowed_actions=[text], valid=said.status != "unparsed")


def _tool_call_id(call: str, number: int) -> str:
    """Nine letters and digits, as the strictest chat templates want them; the same for the same rollout."""
    return hashlib.sha256(f"{call} {number}".encode()).hexdigest()[:9]


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:16]
