"""Records of updates and evaluations for tests that need some and do not care for most of their figures."""

from divopd.records import (
    Answers,
    BatchFigures,
    EvaluationRecord,
    LogprobGap,
    QueueFigures,
    Spent,
    UpdateFigures,
    UpdateRecord,
)


def make_update_record(update: int, *, loss: float = 0.5, turns_put: int = 9) -> UpdateRecord:
    """The record of an update that took ten seconds, two of them waiting."""
    return UpdateRecord(
        update=update,
        clock="wall",
        elapsed_s=10.0 * (update + 1),
        waited_s=2.0,
        starved_s=1.0,
        batch=BatchFigures(8, 4, 3.5, 0.4, 2.0, 0.0, 0.25, 1.0, 0.125, 640),
        learner=UpdateFigures(
            rows=8,
            dead_rows=0,
            valid_tokens=40,
            tokens=640,
            computed_tokens=320,
            loss=loss,
            learner_kl_per_token=0.2,
            gradient_norm=1.5,
            logprob_gap=LogprobGap(version=update, tokens=9, mean=2e-6, largest=3e-5),
            seconds={"forward": 0.25, "backward": 0.5},
            clipped_norm=1.0,
            lr=1e-3,
            memory_bytes=10**9,
            processor_s={"forward": 0.2, "backward": 0.4},
        ),
        queue=QueueFigures(3, turns_put, 1, 0, 0, 1, 3, 0, 8, pending=2, invalid_by_reason={"no_tokens": 1}),
        spent=Spent(100, 1000, 640, 320, 8.0 * (update + 1)),
    )


def make_evaluation_record(version: int, *, success_rate: float = 40.0) -> EvaluationRecord:
    answers = {"pick": Answers(turns=190, tokens=950, longest=8, cut=19, without_action=10, invalid_actions=38)}
    return EvaluationRecord(version, success_rate, 20, turns=9.5, by_kind={"pick": success_rate}, answers=answers)
