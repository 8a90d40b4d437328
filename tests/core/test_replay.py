"""The replay lab and the synthetic recordings it is shown on."""

from dataclasses import replace
from pathlib import Path
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from divopd import METHODS, Turn, make_composer
from divopd.cli import main
from divopd.metrics import batch_figures
from divopd.replay import Recording, recording_of, replay, utilization_of
from divopd.synth import PRESETS, load_of, synthesize, with_load
from divopd.turns import write_turns
from literal import LiteralDivOPD
from strategies import recordings, turn

UPDATES = 100


@given(turns=recordings(), batch=st.integers(1, 8), shuffle=st.randoms(use_true_random=False))
def test_a_replay_is_algorithm_1_on_what_has_arrived(turns: list[Turn], batch: int, shuffle) -> None:
    """At update q the reader sees the turns with available_at ≤ q in recorded order, sorted or not."""
    shuffle.shuffle(turns)
    literal = LiteralDivOPD(B=batch, c=4, k=4, delta=2, W=8)
    decisions = list(replay(recording_of(turns), make_composer("divopd", batch_size=batch), updates=14))
    unread = list(turns)
    for update, decision in enumerate(decisions):
        visible = [t for t in unread if t.available_at <= update]
        left = list(visible)
        expected = literal.update(update, left)
        read = visible[: len(visible) - len(left)]
        unread = [t for t in unread if t not in read]
        assert [c.key for c in decision.selected] == [t.key for t in expected["selected"]]
        assert [c.key for c in decision.stale] == [t.key for t in expected["stale"]]
        assert len(decision.pending) == len(literal.P)


@given(
    turns=recordings(),
    batch=st.integers(1, 8),
    width=st.integers(1, 5),
    delta=st.integers(0, 4),
    spare=st.integers(0, 2),
)
def test_vanilla_with_a_wide_pool_composes_vanillas_batches(
    turns: list[Turn], batch: int, width: int, delta: int, spare: int
) -> None:
    """If W ≥ δ - 1 no turn ages out before it is stale, and arrival order takes the oldest turns from any pool."""
    numbers = {"batch_size": batch, "pool_multiplier": width, "max_staleness": delta}
    numbers["max_pending_age"] = max(0, delta - 1 + spare)
    vanilla, wide = (
        [decision.selected for decision in replay(recording_of(turns), make_composer(name, **numbers), updates=16)]
        for name in ("vanilla", "vanilla-wide")
    )
    assert [[c.key for c in batch] for batch in wide] == [[c.key for c in batch] for batch in vanilla]


def test_a_pending_age_below_the_staleness_limit_makes_wide_vanilla_differ() -> None:
    """With W < δ - 1 a turn may age out that vanilla would still have trained: the condition is needed."""
    numbers = {"batch_size": 1, "pool_multiplier": 4, "max_staleness": 3, "max_pending_age": 0}
    recording = recording_of([turn("a", index) for index in range(3)], updates=3)
    selected = [
        [c.turn for decision in replay(recording, make_composer(name, **numbers)) for c in decision.selected]
        for name in ("vanilla", "vanilla-wide")
    ]
    assert selected == [[0, 1, 2], [0, 1]]


def test_a_replay_never_waits() -> None:
    """A batch may be short or empty, and the default number of updates is the recording's own."""
    decisions = list(replay(recording_of([turn("a", 0, available_at=2)]), make_composer("vanilla")))
    assert [len(d.selected) for d in decisions] == [0, 0, 1]


@pytest.fixture(scope="module", params=PRESETS)
def synthetic(request: pytest.FixtureRequest) -> Recording:
    return recording_of(synthesize(PRESETS[request.param], updates=UPDATES, seed=3), updates=UPDATES)


def never_selected(recording: Recording, method: str) -> tuple[float, float]:
    decisions = list(replay(recording, make_composer(method)))
    used = utilization_of(recording, decisions, batch_size=64, max_staleness=2)
    return used.never_selected, used.unreachable


def test_the_presets_show_the_papers_picture(synthetic: Recording) -> None:
    """Vanilla never selects 45-60 % of the valid rollouts, divopd at most 15 %, adaptive a point above the bound."""
    assert 0.45 <= never_selected(synthetic, "vanilla")[0] <= 0.60
    assert never_selected(synthetic, "divopd")[0] <= 0.15
    adaptive, bound = never_selected(synthetic, "divopd-adaptive")
    assert bound <= adaptive <= bound + 0.01


def test_base_and_focus_reach_the_same_rollouts(synthetic: Recording) -> None:
    reached = [
        {c.rollout for decision in replay(synthetic, make_composer(name)) for c in decision.selected}
        for name in ("divopd", "divopd-base")
    ]
    assert reached[0] == reached[1]


def test_focus_composes_as_the_papers_runs_do() -> None:
    """On the ScienceWorld preset, over the last 40 % of updates: the paper's runs have 12.8 to 14.6 effective rollouts
    and a top-1 share of 0.115 to 0.121; emptying one task after the other would give 4.8 and 0.44.
    """
    recording = recording_of(synthesize(PRESETS["scienceworld"], updates=UPDATES, seed=0), updates=UPDATES)
    decisions = list(replay(recording, make_composer("divopd-focus")))
    last = [batch_figures(decisions[update].selected, update=update) for update in range(60, UPDATES)]
    assert fmean(figures.effective_rollouts for figures in last) == pytest.approx(13.1, abs=0.1)
    assert fmean(figures.top1_share for figures in last) == pytest.approx(0.114, abs=0.002)


def test_no_composer_beats_the_bound(synthetic: Recording) -> None:
    for method in METHODS:
        share, bound = never_selected(synthetic, method)
        assert share >= bound


def test_synthesis_is_seeded_and_whole() -> None:
    """The same seed gives the same turns; rollouts arrive whole, in order of arrival, never before their policy."""
    first, again, other = (list(synthesize(PRESETS["webshop"], updates=8, seed=s)) for s in (0, 0, 1))
    assert first == again
    assert first != other
    assert [t.available_at for t in first] == sorted(t.available_at for t in first)
    assert all(t.version <= t.available_at < 8 for t in first)
    assert all(t.turn == i for i, t in enumerate(first[: first[0].rollout_turns]))
    later = next(t for t in first if t.turn == 1)
    before = next(t for t in first if t.rollout == later.rollout)
    assert later.prompt_ids[: before.tokens] == [*before.prompt_ids, *before.response_ids]


@pytest.mark.parametrize("load", [0.5, 1.0, 2.0, 4.0])
def test_the_load_is_what_was_asked(load: float) -> None:
    """Turns that really arrive, by slots, come within 15 % of the load, once the first rollouts are through."""
    model = with_load(replace(PRESETS["webshop"], explorers=200, batch_size=400), load)
    assert load_of(model) == pytest.approx(load, rel=0.02)
    turns = list(synthesize(model, updates=12, seed=0))
    arrived = sum(t.available_at >= 4 for t in turns)
    assert arrived / (8 * model.batch_size) == pytest.approx(load, rel=0.15)


# ── what the table says ───────────────────────────────────────────────────────────────────────────────────────────


def table_of(turns: list[Turn], folder: Path, capsys: pytest.CaptureFixture[str], *methods: str) -> str:
    """What `divopd replay` prints."""
    write_turns(folder / "turns.jsonl", turns)
    assert main(["replay", str(folder / "turns.jsonl"), "--method", *methods]) == 0
    return capsys.readouterr().out


def row_of(table: str, method: str) -> list[str]:
    """The cells of a method's row, its name first."""
    return next(cells for line in table.splitlines() if (cells := line.split())[:1] == [method])


def test_a_recording_without_a_valid_turn_says_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The counted reasons stand under the table, and no share of rollouts that do not exist in it."""
    lost = [turn("a", index, action_mask=None) for index in range(5)] + [turn("b", 0, prompt_truncated=True)]
    out = table_of(lost, tmp_path, capsys, "divopd", "vanilla")
    assert "all 6 turns are invalid (no_action_mask 5, prompt_truncated 1)" in " ".join(out.split())
    gated, ungated = row_of(out, "divopd"), row_of(out, "vanilla")
    assert gated[1:] == ["–"] * 7 + ["0.0", "0"]
    assert ungated[1:3] == ["–", "–"]
    assert ungated[6] == "100.0%"


def test_a_recording_with_a_valid_turn_has_its_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = table_of([turn("a", 0), turn("b", 0, action_mask=None)], tmp_path, capsys, "divopd")
    assert row_of(out, "divopd")[1:3] == ["0.0%", "0.00"]
    assert "1 valid rollouts" in out
    assert "invalid" not in out


def test_what_a_replay_cannot_show_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A method with a part in the explorer looks like the composer it has: a note under the table names it."""
    assert {name for name in METHODS if name.startswith("tcod-")} | {"turnopd", "divopd-r"} == {
        name for name, method in METHODS.items() if method.explorers
    }
    for name in (name for name, method in METHODS.items() if method.explorers):
        said = " ".join(table_of([turn("a", 0)], tmp_path, capsys, "vanilla", name).split())
        assert f"a replay cannot show what {name} does in the explorer" in said
    said = " ".join(table_of([turn("a", 0)], tmp_path, capsys, "vanilla", "turnopd", "divopd-r").split())
    assert "what turnopd and divopd-r do in the explorer" in said
    assert "explorer" not in table_of([turn("a", 0)], tmp_path, capsys, "vanilla", "divopd")


def test_a_recording_that_does_not_tell_of_whole_rollouts_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where row weights want to know them: once under the table, and once beside the JSON."""
    silent, telling = [turn("a", 0), turn("a", 1)], [turn("b", 0, rollout_turns=1, rollout_valid_tokens=3)]
    out = " ".join(table_of([*silent, *telling], tmp_path, capsys, "vanilla", "turnopd").split())
    assert out.count("2 of 3 turns lack rollout_turns or rollout_valid_tokens: turnopd weighs them by the rows") == 1
    assert main(["replay", str(tmp_path / "turns.jsonl"), "--method", "turnopd", "--json"]) == 0
    assert capsys.readouterr().err.count("2 of 3 turns lack") == 1
    assert "lack" not in table_of([*silent, *telling], tmp_path, capsys, "vanilla")
    assert "lack" not in table_of(telling, tmp_path, capsys, "turnopd")
