"""Cost: what explorers, teacher and learner spent, and what became of the tokens that the teacher scored.

The paper counts the learner's side and leaves the others open. On the virtual clock all seconds follow from the stated
costs; on the live clock only the learner's were measured, and the others are left out.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from divopd.errors import InputError
from divopd.records import UpdateRecord
from divopd.run.stored_config import stored_config
from divopd.store import Store, StoreReader, is_store

FATES = ("trained", "dead", "stale", "aged_out", "invalid", "pending", "queued")


@dataclass(frozen=True)
class CostAudit:
    """Tokens are those of whole rows, prompt and response, unless the name says valid: those of the valid mask."""

    updates: int
    trained_tokens: int  # dead rows among them: they cost as much as others
    computed_tokens: int  # read by the learner, shared prefixes once
    scored_tokens: int  # by the teacher
    read_tokens: int  # by the teacher, each rollout read once
    generated_tokens: int
    scored_by_fate: dict[str, int]
    scored_valid_tokens: int
    trained_valid_tokens: int
    elapsed_s: float
    learner_s: float  # training
    waited_s: float  # the learner, for a batch
    explorer_s: float | None  # summed over the rollouts in flight; None: the clock does not say
    teacher_s: float | None
    stages_s: dict[str, float]  # real seconds of the learner by stage

    @property
    def scored_per_trained(self) -> float | None:
        """In valid tokens, as the paper's table; None if nothing was trained."""
        return self.scored_valid_tokens / self.trained_valid_tokens if self.trained_valid_tokens else None

    @property
    def never_trained_share(self) -> float:
        """Of the scored valid tokens."""
        return 1 - self.trained_valid_tokens / max(1, self.scored_valid_tokens)

    def as_json(self) -> dict[str, Any]:
        derived = {"scored_per_trained": self.scored_per_trained, "never_trained_share": self.never_trained_share}
        return asdict(self) | derived


def audit_cost(run: Path) -> CostAudit:
    """Account for a run of `divopd train`; a recording has neither fates nor a clock and is refused."""
    if not (run.is_dir() or is_store(run)):
        raise InputError(
            f"{run}: a recording has no fates and no clock, so its cost cannot be told; expected a run (for scored per "
            "trained tokens by method: divopd audit utilization)"
        )
    with Store.open_read_only(run) as store, store.snapshot():
        updates = store.update_records()
        if not updates:
            raise InputError(f"{run}: this run has not recorded an update; expected a run of `divopd train`")
        return _account(store, updates, _stated_costs(run))


def _account(store: StoreReader, updates: Mapping[int, UpdateRecord], costs: Mapping[str, float]) -> CostAudit:
    fates: Counter[str] = Counter()
    valid: Counter[str] = Counter()
    longest: dict[str, int] = {}
    turns = 0
    for turn in store.stored_turns():
        dead = turn.fate.kind == "trained" and turn.reason is not None
        fates["dead" if dead else turn.fate.kind] += turn.tokens
        if turn.reason is None:
            valid[turn.fate.kind] += turn.valid_tokens
        longest[turn.rollout] = max(longest.get(turn.rollout, 0), turn.tokens)
        turns += 1
    last, read = updates[max(updates)], sum(longest.values())
    stages: Counter[str] = Counter()
    for record in updates.values():
        stages.update(record.learner.seconds if record.learner else {})
    stated = costs if last.clock == "virtual" else {}
    acting = {
        "rollout_s": len(longest),
        "environment_step_s": turns,
        "read_token_s": read,
        "generated_token_s": last.spent.generated_tokens,
    }
    return CostAudit(
        updates=len(updates),
        trained_tokens=last.spent.trained_tokens,
        computed_tokens=last.spent.computed_tokens,
        scored_tokens=fates.total(),
        read_tokens=read,
        generated_tokens=last.spent.generated_tokens,
        scored_by_fate={fate: fates[fate] for fate in FATES},
        scored_valid_tokens=valid.total(),
        trained_valid_tokens=valid["trained"],
        elapsed_s=last.elapsed_s,
        learner_s=last.spent.learner_s,
        waited_s=sum(record.waited_s for record in updates.values()),
        explorer_s=sum(stated[name] * count for name, count in acting.items()) if stated else None,
        teacher_s=stated["scored_token_s"] * read if stated else None,
        stages_s=dict(stages),
    )


def _stated_costs(run: Path) -> Mapping[str, float]:
    return stored_config(run if run.is_dir() else run.parent).get("costs", {})
