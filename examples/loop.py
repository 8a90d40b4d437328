"""DivOPD in one file: the student plays, the teacher scores, the pool composes a batch, the learner takes one step.

    python examples/loop.py [UPDATES]

It is the whole method without the system around it: no store, no processes, no checkpoints, no clock. What is left of
asynchrony is a queue that grows faster than it is trained, so that turns wait, and expire. `divopd train` runs the same
parts at once and survives crashes; src/divopd/pipeline/training.py is its loop.
"""

import sys
from dataclasses import replace
from itertools import count, islice

from divopd import Pool, Row
from divopd.environments import make_environment, tasks
from divopd.evaluation import Exam
from divopd.explorer import Acting, Start, play, rows_of
from divopd.learner.torch_learner import TorchLearner
from divopd.models.model_files import model_folder
from divopd.models.optimization import Optimization
from divopd.models.transformers_policy import TransformersPolicy
from divopd.prompts import Codec, style_for
from divopd.teacher import score_rollouts

ENVIRONMENT = "alfworld-small"
HORIZON = 15  # turns of a rollout
ROLLOUTS = 8  # played with each policy version
BATCH = 32  # turns


def main(updates: int) -> None:
    student = TransformersPolicy.load(model_folder("embedded:student"))  # weak: about one task in eight
    teacher = TransformersPolicy.load(model_folder("embedded:teacher"))  # frozen: nine tasks in ten
    learner = TorchLearner(student, Optimization(lr=3e-4))
    pool = Pool("divopd", batch_size=BATCH, pool_multiplier=4, cap=4, max_staleness=2)  # scored turns that wait

    style = style_for(ENVIRONMENT, answer="terse", actions="unlisted", max_prompt_tokens=512)
    acting = Acting(style, Codec(student.tokenizer), temperature=1.0, max_response_tokens=24, seed=0)
    environments = [make_environment(ENVIRONMENT) for _ in range(ROLLOUTS)]
    training, held_out = tasks(ENVIRONMENT, "train"), tasks(ENVIRONMENT, "test")
    exam = Exam(ENVIRONMENT, tuple(held_out[:40]), replace(acting, temperature=0.4), horizon=HORIZON)

    numbers = count()  # of rollouts
    print(f"before: {exam.play(student).percent:.0f} % of {len(exam.tasks)} tasks")

    for update in range(updates):
        # 1. explore: rollouts with the student as it is now
        starts = [Start(n, training[n % len(training)], depth=HORIZON) for n in islice(numbers, ROLLOUTS)]
        played = play(starts, acting, student=student, environments=environments)

        # 2. score: the frozen teacher reads the student's own tokens
        rollouts = [rows_of(one, name=f"rollout-{one.start.number}", version=update) for one in played]
        for rollout in score_rollouts(teacher, [rollout for rollout in rollouts if rollout]):
            pool.put(map(Row.of, rollout.turns))

        # 3. compose: gate, coverage, focus; what is not selected stays pending, or expires
        batch = pool.compose(update, allow_short=True)

        # 4. update: one policy-gradient step on the batch
        figures = learner.update([row.payload for row in batch.rows], batch.weights)

        shown = batch.metrics
        print(
            f"update {update + 1}: {shown['rows']} turns of {shown['rollouts']} rollouts (largest "
            f"{shown['top1_share']:.0%} of the tokens), {shown['invalid']} dropped by the gate, {shown['stale']} "
            f"stale, {shown['queued']} queued; KL {shown['kl_per_token']:.2f} a token, gradient "
            f"{figures.gradient_norm:.1f}, {sum(one.success for one in played)} of {len(played)} rollouts succeeded"
        )
    print(f"after:  {exam.play(student).percent:.0f} % of {len(exam.tasks)} tasks")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 12)
