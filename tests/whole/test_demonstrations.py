"""Expert data: labels of the expert at every state, exact targets, the same rollouts from the same seed."""

import random
from collections import Counter
from itertools import islice
from pathlib import Path

import pytest

from coin_hunt import CoinHunt, Guide
from divopd.bootstrap.demonstrations import (
    Demonstration,
    LabelledTurn,
    Slips,
    demonstrate,
    encode,
    expert_rollout,
    texts,
    weak_rollout,
)
from divopd.environments import Observation
from divopd.errors import EnvironmentFailure, InputError
from divopd.prompts import PromptStyle

HUNT = f"{Path(__file__).parents[1] / 'coin_hunt.py'}:CoinHunt"
TERSE = PromptStyle(answer="terse", actions="unlisted")
NONE = Slips(plausible=0, random=0, repeat=0)


def play(slips: Slips, number: int, kind: str = "expert") -> Demonstration:
    make = expert_rollout if kind == "expert" else weak_rollout
    return make(CoinHunt(), Guide(), str(number), slips=slips, horizon=12, source=random.Random(number))


def test_without_slips_the_expert_wins_in_two_turns() -> None:
    """With no slips what is done is the label, everywhere."""
    for number in range(20):
        demonstration = play(NONE, number)
        assert demonstration.success
        assert [turn.label for turn in demonstration.turns] == [turn.done for turn in demonstration.turns]
        assert len(demonstration.turns) == 2


def test_labels_are_the_experts_also_after_slips() -> None:
    """Every label leads to the coin from where the slips have led."""
    slipped = 0
    for number in range(60):
        demonstration = play(Slips(plausible=0.5, random=0.2, repeat=0.2), number)
        goal = demonstration.turns[0].seen.text.split(" box.")[0].split(" ")[-1]
        here = ""
        for turn in demonstration.turns:
            assert turn.label == (f"open {goal}" if here == goal else f"go {goal}")
            slipped += turn.label != turn.done
            here = turn.done.split(" ")[1] if turn.done.startswith("go") else here
    assert slipped > 40


def test_weak_rollouts_are_labelled_with_what_was_done() -> None:
    """A weak policy's own actions are its labels, and the share of slips is as asked."""
    played = [play(Slips(plausible=0, random=0.6, repeat=0), number, "weak") for number in range(300)]
    assert all(turn.label == turn.done for demonstration in played for turn in demonstration.turns)
    first = Counter(d.turns[0].done == f"go {d.turns[0].seen.text.split(' box.')[0].split(' ')[-1]}" for d in played)
    assert 0.45 < first[True] / 300 < 0.75  # 0.4 by the expert and a third of 0.6 by chance


def test_slips_are_of_their_kind() -> None:
    """Plausible: kinds that the expert uses. Repeat: something done before. Without a choice nothing slips."""
    only = [play(Slips(plausible=1, random=0, repeat=0), n, "weak").turns[0].done for n in range(30)]
    assert all(action.startswith("go ") for action in only)  # opening comes to the expert's mind only at the box
    repeated = play(Slips(plausible=0, random=0, repeat=1), 3, "weak")
    assert len({turn.done for turn in repeated.turns}) == 1
    assert not repeated.success
    with pytest.raises(InputError, match=r"plausible 0\.9, random 0\.2, repeat 0; expected shares"):
        Slips(plausible=0.9, random=0.2, repeat=0)


def test_the_same_seed_gives_the_same_rollouts() -> None:
    """Another seed or another kind of label gives others."""
    first, again, other = (list(islice(demonstrate(HUNT, "expert", slips=Slips(), seed=s), 20)) for s in (1, 1, 2))
    assert first == again != other
    assert first != list(islice(demonstrate(HUNT, "weak", slips=Slips(), seed=1), 20))


def test_targets_are_exact_until_what_was_done_differs() -> None:
    """At each target position the sequence so far is a prompt followed by the label's own tokens."""
    pytest.importorskip("transformers", reason="for want of the extra train")
    from divopd.models.tiny import build_tokenizer
    from divopd.prompts import Codec

    played = [play(Slips(plausible=0.4, random=0.2, repeat=0.2), number) for number in range(40)]
    codec = Codec(build_tokenizer(texts(played, TERSE)))
    for demonstration in played:
        example = encode(demonstration, TERSE, codec)
        opened = [n + 1 for n, token in enumerate(example.ids) if [token] == codec.open_response]
        assert len(opened) == len(demonstration.turns)
        wanted: list[tuple[int, int]] = []
        for start, turn in zip(opened, demonstration.turns, strict=True):
            label = codec.response_ids(turn.label)
            agreed = 0
            while agreed < len(label) - 1 and label[agreed] == example.ids[start + agreed]:
                agreed += 1
            wanted += [(start + n, label[n]) for n in range(agreed + 1)]
        assert list(zip(example.positions, example.targets, strict=True)) == wanted
        assert codec.decode(example.ids[opened[-1] :].tolist()) == demonstration.turns[-1].done
        answered = {start + n for start, turn in zip(opened, demonstration.turns, strict=True)
                    for n in range(len(codec.response_ids(turn.done)))}  # fmt: skip
        assert set(example.read) == set(range(1, len(example.ids))) - answered


def test_an_environment_that_dies_costs_no_demonstration() -> None:
    """A rollout that broke off is played again, to the same turns; an environment that always dies is an error."""

    def told(hunt: str) -> list[list[str]]:
        rollouts = islice(demonstrate(HUNT.replace("CoinHunt", hunt), "expert", slips=Slips(), seed=3), 20)
        return [[turn.done for turn in rollout.turns] for rollout in rollouts]

    assert told("ShakyHunt") == told("CoinHunt")
    with pytest.raises(EnvironmentFailure, match="gave way"):
        told("FallenHunt")


def test_targets_stop_where_the_prompt_no_longer_fits() -> None:
    """Turns whose prompt would be cut are not taught; a style without full history is refused."""
    pytest.importorskip("transformers", reason="for want of the extra train")
    from divopd.models.tiny import build_tokenizer
    from divopd.prompts import Codec

    turns = tuple(LabelledTurn(Observation(f"seen {n} " * 10), "go", "go") for n in range(5))
    demonstration = Demonstration("t", turns, success=False)
    codec = Codec(build_tokenizer(texts([demonstration], TERSE)))
    whole = encode(demonstration, TERSE, codec)
    short = encode(demonstration, PromptStyle(answer="terse", actions="unlisted", max_prompt_tokens=60), codec)
    assert 0 < len(short.targets) < len(whole.targets)
    assert list(short.ids) == list(whole.ids[: len(short.ids)])
    with pytest.raises(InputError, match=r"history is 3; .* needs full"):
        encode(demonstration, PromptStyle(answer="terse", history=3), codec)
