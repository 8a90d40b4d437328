"""A transformers model as a policy: what it scores and what it samples."""

import copy
import json
from collections.abc import Hashable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import Gemma2Config, Gemma2ForCausalLM, MistralConfig, MistralForCausalLM

from divopd.cli import main
from divopd.errors import AlignmentError, InputError
from divopd.learner.torch_learner import TorchLearner
from divopd.models.logit_chunks import ON_CPU, ON_CUDA, LogitChunks, logit_chunks
from divopd.models.model_files import read_model_facts
from divopd.models.optimization import Optimization
from divopd.models.policy import Policy, Response
from divopd.models.published import PUBLISHED
from divopd.models.tiny import build_model, build_tokenizer, save_model
from divopd.models.transformers_policy import TransformersPolicy
from token_rollouts import VOCABULARY, gradient, own_copy, plain_logprobs, rollout, tiny_model


@pytest.fixture(scope="module")
def policy() -> TransformersPolicy:
    return TransformersPolicy(tiny_model(), max_tokens=100)


def tokens(size: int, seed: int) -> list[int]:
    return np.random.default_rng(seed).integers(4, VOCABULARY, size).tolist()


def test_scores_are_those_of_each_turn_read_alone(policy: TransformersPolicy) -> None:
    """A rollout read once, its turns given one by one, and the model's own forward pass agree."""
    turns = rollout("a", turns=6)
    reference = own_copy(policy.model)
    whole = [*turns[-1].prompt_ids, *turns[-1].response_ids]
    spans = [(len(turn.prompt_ids), turn.tokens) for turn in turns]
    (once,) = policy.score([whole], [spans])
    single = policy.score([whole[:end] for _, end in spans], [[span] for span in spans])
    for turn, ours, (alone,) in zip(turns, once, single, strict=True):
        expected = plain_logprobs(reference, turn).detach().numpy()
        np.testing.assert_allclose(ours, expected, atol=1e-12)
        np.testing.assert_allclose(alone, expected, atol=1e-12)


def test_score_keeps_order_and_empty_spans(policy: TransformersPolicy) -> None:
    long, short = tokens(40, 1), tokens(3, 2)
    scores = policy.score([short, long, short], [[(1, 3), (2, 2)], [], [(2, 3)]])
    assert [[len(span) for span in row] for row in scores] == [[2, 0], [], [1]]
    assert scores[0][0][1] == scores[2][0][0]
    with pytest.raises(AlignmentError, match="span 0…2 of 3 tokens"):
        policy.score([short], [[(0, 2)]])


@pytest.mark.parametrize("chunks", [ON_CPU, ON_CUDA, LogitChunks(at_once=2**20, kept=2**21)], ids=str)
def test_a_large_vocabulary_is_projected_in_chunks(chunks: LogitChunks) -> None:
    """With 2¹⁸ tokens in the vocabulary a chunk has 32, 256 or 4 positions; scores and gradients are all the same.

    Of the smallest, two are kept for the backward pass and eleven are computed again.
    """
    model = tiny_model(torch.float32, vocab_size=2**18, hidden_size=8, tie_word_embeddings=True, initializer_range=0.5)
    turn = replace(rollout("a", turns=1)[0], response_ids=(ids := tokens(50, 1)), teacher_mask=None,
                   student_logprobs=[-1.0] * 50, teacher_logprobs=[-9.0] * 50, action_mask=[1] * 50)  # fmt: skip
    reference = copy.deepcopy(model)
    policy = TransformersPolicy(model)
    policy.scorer.chunks = chunks
    start = len(turn.prompt_ids)
    expected = plain_logprobs(reference, turn)
    ((scores,),) = policy.score([[*turn.prompt_ids, *ids]], [[(start, start + 50)]])
    np.testing.assert_allclose(scores, expected.detach().numpy(), atol=1e-4)
    TorchLearner(policy).gradient([turn])
    (-(torch.full((50,), -9.0) - expected.detach()) * expected).mean().backward()
    assert (gradient(model) - gradient(reference)).norm() < 1e-4 * gradient(reference).norm()


def test_chunks_on_a_gpu_are_large_enough_for_its_products() -> None:
    """At 295 positions an H100 reads the head in the time of the product; the students' vocabularies allow more."""
    assert logit_chunks("cuda") == logit_chunks("cuda:1") == ON_CUDA
    assert logit_chunks("cpu") == ON_CPU
    assert min(ON_CUDA.at_once // model.vocabulary for model in PUBLISHED.values()) > 989e12 / 3350e9


def test_a_sliding_window_is_respected() -> None:
    """A model that sees six tokens back scores and samples so, packed or not."""
    config = MistralConfig(
        vocab_size=VOCABULARY, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, sliding_window=6, max_position_embeddings=128, initializer_range=0.2, eos_token_id=3,
    )  # fmt: skip
    torch.manual_seed(0)
    policy = TransformersPolicy(MistralForCausalLM(config).double())
    reference = own_copy(policy.model)
    turns = rollout("a", turns=4)
    rows = [[*turn.prompt_ids, *turn.response_ids] for turn in turns]
    scores = policy.score(rows, [[(len(turn.prompt_ids), turn.tokens)] for turn in turns])
    for turn, (ours,) in zip(turns, scores, strict=True):
        np.testing.assert_allclose(ours, plain_logprobs(reference, turn).detach().numpy(), atol=1e-9)
    assert_logprobs_are_the_scores(policy, [tokens(50, 1), tokens(9, 2)])


def test_an_architecture_that_cannot_be_packed_is_refused() -> None:
    """Gemma 2 caps its logits, which a plain projection would silently get wrong."""
    config = Gemma2Config(
        vocab_size=VOCABULARY, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=4, initializer_range=0.5,
    )  # fmt: skip
    with pytest.raises(InputError, match="Gemma2ForCausalLM cannot be packed"):
        TransformersPolicy(Gemma2ForCausalLM(config))


# ── sampling ──────────────────────────────────────────────────────────────────────────────────────────────────────


def assert_logprobs_are_the_scores(policy: Policy, prompts: list[list[int]]) -> None:
    for temperature in (0.0, 0.4, 1.0):
        responses = policy.respond(prompts, temperature=temperature, max_tokens=12, seeds=range(len(prompts)))
        for prompt, response in zip(prompts, responses, strict=True):
            whole = [*prompt, *response.ids]
            ((scores,),) = policy.score([whole], [[(len(prompt), len(whole))]])
            np.testing.assert_allclose(response.logprobs, scores, atol=1e-9)


def test_log_probabilities_of_responses_are_the_scores(policy: TransformersPolicy) -> None:
    """Sampled with a cache, batched, at any temperature: scoring the same tokens gives the same numbers."""
    assert_logprobs_are_the_scores(policy, [tokens(size, size) for size in (30, 1, 120, 7, 8)])


def test_a_response_depends_on_its_prompt_and_seed_only(policy: TransformersPolicy) -> None:
    """Alone, in another order, in other company: the same tokens. Another seed: other tokens."""
    prompts = [tokens(size, size) for size in (12, 5, 33, 20)]
    together = policy.respond(prompts, temperature=1.0, max_tokens=15, seeds=[1, 2, 3, 4])
    backwards = policy.respond(prompts[::-1], temperature=1.0, max_tokens=15, seeds=[4, 3, 2, 1])[::-1]
    for n, prompt in enumerate(prompts):
        (alone,) = policy.respond([prompt], temperature=1.0, max_tokens=15, seeds=[n + 1])
        assert alone.ids == together[n].ids == backwards[n].ids
    (other,) = policy.respond([prompts[0]], temperature=1.0, max_tokens=15, seeds=[9])
    assert other.ids != together[0].ids


def test_responses_end_at_the_stop_token(policy: TransformersPolicy) -> None:
    """The stop token is the last token of a response and part of it; without one a response has the full length."""
    responses = policy.respond([[5, 6, 7]] * 100, temperature=1.0, max_tokens=20, seeds=range(100))
    lengths = {len(response.ids) for response in responses}
    assert max(lengths) == 20
    assert min(lengths) < 20
    for response in responses:
        assert 3 not in response.ids[:-1]
        assert response.ids[-1] == 3 or len(response.ids) == 20
        assert len(response.logprobs) == len(response.ids)


def test_tokens_are_sampled_from_the_tempered_distribution(policy: TransformersPolicy) -> None:
    """Frequencies of the first token over 500 seeds against softmax(logits / T)."""
    prompt = tokens(6, 4)
    with torch.no_grad():
        logits = own_copy(policy.model)(torch.tensor([prompt])).logits[0, -1]
    for temperature in (0.4, 1.0):
        expected = (logits / temperature).softmax(-1).numpy()
        said = policy.respond([prompt] * 500, temperature=temperature, max_tokens=1, seeds=range(500))
        counts = np.bincount([response.ids[0] for response in said], minlength=VOCABULARY)
        assert np.abs(counts / 500 - expected).max() < 4 * np.sqrt(0.25 / 500)
    assert policy.respond([prompt], temperature=0.0, max_tokens=1, seeds=[0])[0].ids == [int(logits.argmax())]


def test_the_next_turn_reads_only_its_new_tokens() -> None:
    """With the memory of earlier turns a response is the same as without it; only new tokens go through the model."""
    model = tiny_model()
    read = []
    model.model.embed_tokens.register_forward_hook(lambda module, args, output: read.append(args[0].numel()))
    with_memory = TransformersPolicy(model)
    contexts = [tokens(50, 1), tokens(40, 2)]
    for turn in range(4):
        del read[:]
        responses = with_memory.respond(contexts, temperature=1.0, max_tokens=5, seeds=[turn, turn + 100])
        if turn:
            assert read[0] <= 2 * 4  # the last sampled token, which was never read, and three new ones
        fresh = TransformersPolicy(tiny_model()).respond(
            contexts, temperature=1.0, max_tokens=5, seeds=[turn, turn + 100]
        )
        for ours, theirs in zip(responses, fresh, strict=True):
            assert ours.ids == theirs.ids
            np.testing.assert_allclose(ours.logprobs, theirs.logprobs, atol=1e-12)
        contexts = [[*c, *r.ids, *tokens(3, turn)] for c, r in zip(contexts, responses, strict=True)]


def test_responses_that_are_added_one_by_one_are_as_if_alone() -> None:
    """Prompts of any length join while others are written, and one key goes on with new weights.

    Tokens depend on prompt and seed only; log probabilities are those of a fresh pass at the weights of the response.
    """
    policy, other, seen = TransformersPolicy(tiny_model(), max_tokens=16), TransformersPolicy(tiny_model()), 0
    contexts = {key: tokens(size, key) for key, size in enumerate((30, 1, 55, 7))}
    for turn in range(3):
        waiting, over = list(contexts), dict[Hashable, Response]()
        while waiting or policy.pending:
            if waiting:  # one more with every token of the others
                key = waiting.pop(0)
                policy.add(key, contexts[key], temperature=1.0, max_tokens=6, seed=10 * turn + key)
            over.update(policy.step())
        for key, prompt in contexts.items():
            whole, response = [*prompt, *over[key].ids], over[key]
            ((scores,),) = policy.score([whole], [[(len(prompt), len(whole))]])
            np.testing.assert_allclose(response.logprobs, scores, atol=1e-9)
            seeds = [10 * turn + key]
            (alone,) = other.respond([prompt], temperature=1.0, max_tokens=6, seeds=seeds)
            assert response.ids == alone.ids
            seen += len(response.ids)
        contexts = {key: [*prompt, *over[key].ids, *tokens(3, turn)] for key, prompt in contexts.items()}
        weights = {name: 1.1 * value for name, value in policy.weights().items()}
        for one in (policy, other):
            one.fill_weights(weights, source="a test")
    assert seen > 40


def test_nobody_waits_for_a_prompt_that_is_read() -> None:
    """While a long prompt is read in pieces, the others get a token with every pass."""
    policy = TransformersPolicy(tiny_model(), max_tokens=8)
    policy.add("short", tokens(3, 1), temperature=1.0, max_tokens=5, seed=3)
    policy.step()
    policy.add("long", tokens(60, 2), temperature=1.0, max_tokens=1, seed=1)
    order = [key for _ in range(12) for key, _ in policy.step()]
    assert order == ["short", "long"]


def test_a_new_prompt_waits_four_tokens_for_others_at_most() -> None:
    """Few are read together; as many as are being written, at once; what is begun is read to its end."""
    policy, passes = TransformersPolicy(tiny_model(), max_tokens=64), list[int]()
    policy.model.get_input_embeddings().register_forward_pre_hook(lambda _, args: passes.append(args[0].numel()))

    def add(key: Hashable, size: int) -> None:
        policy.add(key, tokens(size, len(passes)), temperature=0.0, max_tokens=40, seed=0)

    for key in range(8):
        add(key, 6)
    policy.step()
    add("long", 150)
    for _ in range(7):
        policy.step()
    add("few", 11)
    for _ in range(5):
        policy.step()
    for number in range(9):
        add(f"many {number}", 5)
    policy.step()
    add("last", 5)
    policy.step()
    assert policy.pending == 20, "a response has ended: the passes are smaller"
    assert passes == [48, *[8] * 4, 8 + 64, 8 + 64, 8 + 22, *[9] * 4, 9 + 11, 10, 10 + 50]


def test_memory_is_dropped_when_a_weight_changes() -> None:
    """After an update the same prompt is read again: its log probabilities are the new weights'."""
    policy = TransformersPolicy(tiny_model(torch.float32))
    prompt = tokens(30, 1)
    policy.respond([prompt], temperature=1.0, max_tokens=5, seeds=[0])
    TorchLearner(policy, Optimization(lr=0.1)).update(rollout("a"))
    (response,) = policy.respond([prompt], temperature=1.0, max_tokens=5, seeds=[0])
    whole = [*prompt, *response.ids]
    ((scores,),) = policy.score([whole], [[(30, len(whole))]])
    np.testing.assert_allclose(response.logprobs, scores, atol=1e-4)


def test_foreign_ids_are_refused(policy: TransformersPolicy) -> None:
    for wrong in (VOCABULARY, -1):
        with pytest.raises(AlignmentError, match=f"token id {wrong} is outside the model's vocabulary of {VOCABULARY}"):
            policy.score([[5, wrong]], [[(1, 2)]])
        with pytest.raises(AlignmentError, match=f"token id {wrong} "):
            policy.respond([[wrong]], temperature=1.0, max_tokens=1, seeds=[0])
    with pytest.raises(InputError, match="no token"):
        policy.respond([[]], temperature=1.0, max_tokens=1, seeds=[0])


# ── folders ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tokenizer = build_tokenizer(["go to the fridge", "go to the shelf"], min_count=1)
    save_model(tmp_path / "model", build_model(tokenizer, seed=0), tokenizer)
    return tmp_path / "model"


def test_a_saved_policy_loads_with_the_same_scores(folder: Path, tmp_path: Path) -> None:
    first = TransformersPolicy.load(folder)
    first.save(tmp_path / "again")
    second = TransformersPolicy.load(tmp_path / "again")
    ids = first.encode("go to the fridge")
    assert first.decode(ids) == "go to the fridge"
    assert second.encode("go to the fridge") == ids
    spans = [[(1, len(ids))]]
    np.testing.assert_array_equal(first.score([ids], spans)[0][0], second.score([ids], spans)[0][0])
    assert first.context_length == 4096
    half = TransformersPolicy.load(folder, dtype="bfloat16").score([ids], spans)[0][0]
    np.testing.assert_allclose(half, first.score([ids], spans)[0][0], atol=0.1)


def test_environment_text_cannot_forge_a_control_token(folder: Path) -> None:
    """A chat marker in untrusted text is spelled out, and decodes to the same text."""
    policy = TransformersPolicy.load(folder)
    marker = policy.tokenizer.eos_token
    assert policy.tokenizer.eos_token_id not in policy.encode(f"go {marker} to")
    assert policy.decode(policy.encode(f"go {marker} to")) == f"go {marker} to"


def test_a_name_of_the_hub_says_how_to_get_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Loading, planning and evaluating name the command; what cannot be a Hub's name gets no such advice."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    asking = (TransformersPolicy.load, read_model_facts)
    advice = "hf download Qwen/Qwen3-1.7B --local-dir models/Qwen3-1.7B, then set the model to models/Qwen3-1.7B"
    for ask in asking:
        with pytest.raises(InputError, match=r"Qwen/Qwen3-1\.7B: no model there") as caught:
            ask(Path("Qwen/Qwen3-1.7B"))
        assert advice in str(caught.value)
        assert "\n" not in str(caught.value)
    for name in ("nowhere", "mine/teacher", "a/b/c", "../b", str(tmp_path / "x"), "a b/c"):
        for ask in asking:
            with pytest.raises(InputError, match="no model there") as caught:
                ask(Path(name))
            assert "hf download" not in str(caught.value)
    assert main(["evaluate", "Qwen/Qwen3-1.7B", "--environment", "alfworld-small"]) == 2
    assert advice in capsys.readouterr().err


def test_only_safetensors_without_code_are_loaded(folder: Path, tmp_path: Path) -> None:
    """No folder, no safetensors, another dtype, a broken configuration, remote code: one clear error each."""
    with pytest.raises(InputError, match="no model there"):
        TransformersPolicy.load(tmp_path / "nothing")
    with pytest.raises(InputError, match="dtype 'int8' is not known"):
        TransformersPolicy.load(folder, dtype="int8")
    config = json.loads((folder / "config.json").read_text())
    remote = {
        **config,
        "model_type": "mine",
        "auto_map": {"AutoModelForCausalLM": "evil.Model", "AutoConfig": "evil.C"},
    }
    (folder / "evil.py").write_text("raise SystemExit('remote code ran')")
    (folder / "config.json").write_text(json.dumps(remote))
    with pytest.raises(InputError, match="transformers cannot load it"):
        TransformersPolicy.load(folder)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(InputError, match="no model there"):
        TransformersPolicy.load(folder)
