"""A teacher on SGLang, on recorded answers: written by hand in the shape that SGLang documents, no server was asked."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from divopd.errors import InputError, TeacherAwayError, WrongAnswerError
from divopd.models.sglang_policy import SglangPolicy
from raw_server import RawServer, with_length
from recording_teacher import SglangTeacher

IDS = list(range(100, 120))


def answering(meta: dict[str, Any] | None) -> Callable[[dict[str, Any]], Iterator[bytes]]:
    """The same answer to everything."""
    return lambda _body: iter([with_length(json.dumps({"text": "", "meta_info": meta}).encode())])


def test_scores_are_those_of_the_tokens_that_are_wanted() -> None:
    """Each at its own position, sequences that continue one another read once, nothing before the first one asked."""
    with SglangTeacher([5, 6, 7]) as server:
        policy = SglangPolicy(server.url, model="teacher", timeout_s=9)
        spans = [[(4, 6)], [(10, 13), (15, 20)]]
        scores = policy.score([IDS[:6], IDS], spans)
        assert server.scored == [IDS]
        right = server.logprobs(IDS)
        for got, wanted in zip(scores, spans, strict=True):
            for values, (start, end) in zip(got, wanted, strict=True):
                assert values.tolist() == pytest.approx(right[start:end])
        assert (policy.context_length, policy.model) == (1024, "teacher")


def test_it_is_asked_by_token_ids_for_the_plain_distribution() -> None:
    """Nothing is generated for a score, and the server returns no probability before the first wanted token."""
    asked: list[dict[str, Any]] = []

    class Noting(SglangTeacher):
        def answer(self, body: dict[str, Any]) -> dict[str, Any] | None:
            asked.append(body)
            return super().answer(body)

    with Noting([5, 6, 7]) as server:
        SglangPolicy(server.url, model=None, timeout_s=9).score([IDS], [[(7, 9)]])
    [body] = asked
    assert (body["input_ids"], body["logprob_start_len"], body["return_logprob"]) == (IDS[:9], 6, True)
    assert body["sampling_params"]["max_new_tokens"] == 0
    assert (body["sampling_params"]["temperature"], body["sampling_params"]["top_p"]) == (1.0, 1.0)


@pytest.mark.parametrize("temperature", [1.0, 0.4])
def test_responses_have_the_log_probabilities_of_the_plain_distribution(temperature: float) -> None:
    """SGLang tells of the distribution after the temperature: another one than 1 is scored once more."""
    with SglangTeacher([5, 6, 7]) as server:
        policy = SglangPolicy(server.url, model="teacher", timeout_s=9)
        [one, two] = policy.respond([IDS, IDS[:4]], temperature=temperature, max_tokens=2, seeds=[0, 1])
        assert (one.ids, two.ids) == ([5, 6], [5, 6])
        assert one.logprobs.tolist() == pytest.approx(server.logprobs([*IDS, 5, 6])[20:])
        assert len(server.scored) == (0 if temperature == 1.0 else 2)


def told(*pairs: tuple[Any, int]) -> dict[str, Any]:
    return {"input_token_logprobs": [[value, token, None] for value, token in pairs]}


@pytest.mark.parametrize(
    ("meta", "words"),
    [
        (None, "without meta_info"),
        ({}, "without input_token_logprobs"),
        ({"input_token_logprobs": [None]}, "without input_token_logprobs"),
        (told((None, 101), (-1.0, 102)), "of 2 prompt tokens"),
        (told((None, 100), (-1.0, 101)), "of 2 prompt tokens"),
        (told((None, 101), (None, 102), (-1.0, 103)), "1 of them without a number"),
        (told((None, 101), (0.5, 102), (-1.0, 103)), "returned 0.5 as a log prob"),
        (told((None, 101), ("x", 102), (-1.0, 103)), "returned 'x' as a log prob"),
    ],
)
def test_a_wrong_answer_is_refused(meta: dict[str, Any] | None, words: str) -> None:
    """Other ids, too few, a gap, a number that no log probability can be: never a score."""
    with RawServer(answering(meta)) as server, pytest.raises(WrongAnswerError, match=words):
        SglangPolicy(server.url, model="teacher", timeout_s=9).score([IDS[:4]], [[(2, 4)]])


def test_a_generation_without_tokens_is_refused() -> None:
    for said in ([], [[-1.0, 1, None]] * 3, [[None, 1, None]]):
        with (
            RawServer(answering({"output_token_logprobs": said})) as server,
            pytest.raises(WrongAnswerError, match="does not say which tokens"),
        ):
            SglangPolicy(server.url, model="teacher", timeout_s=9).respond(
                [IDS], temperature=1.0, max_tokens=2, seeds=[0]
            )


def test_what_is_away_and_what_is_no_address_are_told_apart() -> None:
    """As with any other server."""
    with pytest.raises(TeacherAwayError):
        SglangPolicy("http://127.0.0.1:9/v1", model="m", timeout_s=1).score([IDS], [[(1, 2)]])
    with pytest.raises(InputError, match="no address"):
        SglangPolicy("127.0.0.1", model="m", timeout_s=1)
