"""A teacher behind a server: the same numbers as a local one, and a clear word when it is away or answers wrongly."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="for want of the extra train")
pytest.importorskip("transformers", reason="for want of the extra train")

from divopd.errors import AlignmentError, InputError, TeacherAwayError
from divopd.models.openai_policy import OpenAIPolicy
from divopd.models.tiny import build_model, build_tokenizer, save_model
from divopd.models.transformers_policy import TransformersPolicy
from divopd.pipeline.preflight import load_models
from divopd.records import UpdateRecord
from divopd.store import Store
from divopd.validity import why_invalid
from doubles.listener import Listener
from small_runs import SIZE, config, outcome, train_small
from strategies import turn
from teacher_server import TeacherServer


@pytest.fixture
def server(models: Path) -> Iterator[TeacherServer]:
    server = TeacherServer(TransformersPolicy.load(models / "teacher"))
    yield server
    server.stop()


def remote(server: TeacherServer, model: str | None = "teacher", timeout_s: float = 10.0) -> OpenAIPolicy:
    return OpenAIPolicy(server.url, model=model, timeout_s=timeout_s)


def test_scores_equal_the_local_ones_and_a_rollout_is_sent_once(server: TeacherServer) -> None:
    """To rounding; sequences that continue one another are one request, whose prompt is ids."""
    first, second = [3, 9, 4, 8, 7], [3, 9, 4, 8, 7, 5, 20, 21, 6]
    sequences, spans = [first, second, [5, 6, 7, 8]], [[(3, 5)], [(7, 9), (6, 6)], [(1, 4)]]
    theirs, ours = remote(server).score(sequences, spans), server.policy.score(sequences, spans)
    for got, expected in zip(theirs, ours, strict=True):
        for a, b in zip(got, expected, strict=True):
            np.testing.assert_allclose(a, b, atol=1e-5)
    assert sorted(request["prompt"] for request in server.requests) == [second, [5, 6, 7, 8]]


def test_responses_are_those_of_the_server(server: TeacherServer) -> None:
    """Tokens with their log probabilities, sampled with each prompt's seed."""
    prompts, wish = [[3, 9, 4], [5, 6]], {"temperature": 0.7, "max_tokens": 6, "seeds": [1, 2**32 - 1]}
    for got, expected in zip(
        remote(server, None).respond(prompts, **wish), server.policy.respond(prompts, **wish), strict=True
    ):
        assert got.ids == expected.ids
        np.testing.assert_allclose(got.logprobs, expected.logprobs, atol=1e-5)


def short(choice: dict[str, Any]) -> dict[str, Any]:
    return choice | {"prompt_logprobs": choice["prompt_logprobs"][:-1]}


def of_other_ids(choice: dict[str, Any]) -> dict[str, Any]:
    return choice | {"prompt_logprobs": [None, {"1": {"logprob": -1.0}}, {"1": {"logprob": -1.0}}]}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda choice: choice | {"prompt_logprobs": None}, "no log probabilities of the prompt"),
        (short, "of 2 prompt tokens, 0 of them of other ids, for 3 tokens"),
        (of_other_ids, "2 of them of other ids"),
        (lambda choice: choice | {"prompt_token_ids": [3, 9]}, "for 3 tokens that were sent"),
        (lambda choice: [choice], "answered without a choice"),
    ],
)
def test_answers_that_do_not_fit_are_refused(server: TeacherServer, change: Any, words: str) -> None:
    server.change = change
    with pytest.raises(AlignmentError, match=words):
        remote(server).score([[3, 9, 4]], [[(1, 3)]])


def test_responses_without_tokens_are_refused(server: TeacherServer) -> None:
    server.change = lambda choice: choice | {"token_ids": None}
    with pytest.raises(AlignmentError, match="which tokens it generated"):
        remote(server).respond([[3]], temperature=1.0, max_tokens=2, seeds=[0])


def test_minus_infinity_is_not_a_number_to_train_on(server: TeacherServer) -> None:
    """vLLM writes -9999 for a token that cannot be; such a turn is invalid, not the one with the most to learn."""
    server.change = lambda choice: choice | {"prompt_logprobs": [None, {"9": {"logprob": -9999.0}}]}
    [[values]] = remote(server).score([[3, 9]], [[(1, 2)]])
    assert values.tolist() == [float("-inf")]
    scored = turn("a", 0, response_ids=[9], student_logprobs=[-1.0], teacher_logprobs=values.tolist(), action_mask=[1])
    assert why_invalid(scored) == "not_finite"


def test_errors_are_told_apart(server: TeacherServer) -> None:
    """A wrong request is the user's, with the server's words, cut; an overloaded, slow or absent server is away."""
    policy = remote(server, timeout_s=0.3)
    with pytest.raises(InputError, match="out of vocabulary") as caught:
        policy.score([[3, 10**6]], [[(1, 2)]])
    server.status = 404
    with pytest.raises(InputError, match=r"answered 404: .*not.ntoday x+ \[…\]; check teacher.url") as caught:
        policy.score([[3, 9]], [[(1, 2)]])
    assert len(str(caught.value)) < 500
    for status in (500, 503, 429):
        server.status = status
        with pytest.raises(TeacherAwayError, match=f"answered {status}"):
            policy.score([[3, 9]], [[(1, 2)]])
    server.status, server.delay_s = 200, 0.6
    with pytest.raises(TeacherAwayError, match="timed out"):
        policy.score([[3, 9]], [[(1, 2)]])
    server.stop()
    with pytest.raises(TeacherAwayError, match="refused"):
        policy.score([[3, 9]], [[(1, 2)]])


@pytest.mark.parametrize("url", ["file:///etc/passwd", "ftp://host/v1", "localhost:8000", "http://", ""])
def test_only_web_addresses_are_servers(url: str) -> None:
    with pytest.raises(InputError, match="no address of a server"):
        OpenAIPolicy(url, model=None, timeout_s=1.0)


def test_an_unknown_model_is_refused_with_those_there_are(server: TeacherServer) -> None:
    with pytest.raises(InputError, match="no model 'other'; it has teacher"):
        remote(server, "other").score([[3, 9]], [[(1, 2)]])


# ── whole runs ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_preflight_asks_the_server(server: TeacherServer, models: Path, tmp_path: Path) -> None:
    """It passes where all fits; it names a shorter context, and a vocabulary without the student's last token."""
    served = {"model": "teacher", "url": server.url}
    load_models(config(models, teacher=served))
    with pytest.raises(AlignmentError, match="the teacher reads at most 1023 tokens"):
        load_models(config(models, teacher=served, prompts={"max_prompt_tokens": 1100}))
    tokenizer = build_tokenizer(["one word more than the others have"] * 2 + ["a b c"] * 9)
    save_model(tmp_path / "other", build_model(tokenizer, seed=0, size=SIZE), tokenizer)
    server.policy = TransformersPolicy.load(tmp_path / "other")
    with pytest.raises(AlignmentError, match=r"does not take token .* use a teacher with the student's tokenizer"):
        load_models(config(models, teacher=served))


@pytest.mark.parametrize("method", [pytest.param("divopd", marks=pytest.mark.slow), "divopd-r"])
def test_a_served_teacher_trains_like_a_local_one(
    server: TeacherServer, models: Path, tmp_path: Path, method: str
) -> None:
    """The same batches on the simulated clock, also where the teacher acts, and although it was away for a while."""
    recovery = {"patience": 1, "takeover": 2}
    train_small(tmp_path / "local", config(models, method=method, recovery=recovery))
    served = config(models, method=method, recovery=recovery, teacher={"model": "teacher", "url": server.url})
    back = threading.Timer(1.5, server.start)

    def go_away(record: UpdateRecord) -> None:
        if record.update == 1:
            server.stop()
            back.start()

    listener = Listener(go_away)
    train_small(tmp_path / "served", served, observer=listener)
    back.join()
    assert journal(tmp_path / "local") == journal(tmp_path / "served")
    with Store.open_read_only(tmp_path / "served") as store:
        events = [(kind, event) for _, kind, event in store.events() if kind.startswith("teacher")]
    [(first, event), (second, returned)] = events
    assert (first, second) == ("teacher_away", "teacher_back")
    assert event["update"] <= 2
    assert returned["away_s"] > 0.5
    away = [sentence for sentence in listener.sentences if "is away" in sentence]
    assert away == [event["sentence"]]
    assert away[0].startswith(f"127.0.0.1:{server.port} is away, its rollouts wait until ")
    assert away[0].endswith(event["error"])


def test_a_server_that_breaks_off_now_and_then_delays_a_run(
    server: TeacherServer, models: Path, tmp_path: Path
) -> None:
    """In the middle of an answer: it was away, and the run goes on to its end."""
    load_models(served := config(models, teacher={"model": "teacher", "url": server.url}))
    server.cut = {len(server.requests) * 2 + more for more in (3, 30)}  # training has a preflight, too
    train_small(tmp_path / "run", served)
    assert outcome(tmp_path / "run")[1][1] == 48  # six updates of eight
    with Store.open_read_only(tmp_path / "run") as store:
        assert {kind for _, kind, _ in store.events()} >= {"teacher_away", "teacher_back"}
        assert all("broke off" in event["error"] for _, kind, event in store.events() if kind == "teacher_away")


def journal(folder: Path) -> list[Any]:
    with Store.open_read_only(folder) as store:
        return [store.journal(update).selected for update in range(store.updates)]


@pytest.mark.slow
def test_a_server_that_is_away_delays_a_live_run_and_loses_nothing(
    server: TeacherServer, models: Path, tmp_path: Path
) -> None:
    """Down for 60 seconds: rollouts wait in the store, are scored afterwards, and the run ends; each counts once."""
    served = {"model": "teacher", "url": server.url}
    plan = {"updates": 40, "max_wait_s": 90}  # more than can be made of what was scored before
    settings = config(models, clock="live", teacher=served, learner=plan, evaluation={"every": 40})
    waiting: list[int] = []

    def interrupt(_record: UpdateRecord) -> None:
        if not waiting and len(listener.updates) >= 2:
            server.stop()
            time.sleep(60)  # only who tells of the run sleeps; its roles go on
            with Store.open(tmp_path / "run") as store:
                waiting.append(len(store.unscored(10_000)))
            server.start()

    listener = Listener(interrupt)
    train_small(tmp_path / "run", settings, observer=listener)
    assert waiting[0] > 0
    _, account, rates = outcome(tmp_path / "run")
    assert 40 in rates
    with Store.open(tmp_path / "run") as store:
        assert "teacher_away" in [kind for _, kind, _ in store.events()]
        assert account[0] == store.arrived().turns
    assert any(f"{server.port} is away, its rollouts wait" in sentence for sentence in listener.sentences)
