"""On-policy distillation by Trinity-RFT's own trainer on a CPU, its batches composed by divopd.

    python examples/trinity/train.py [--out FOLDER] [--steps N]

Trinity's: the trainer's loop (`Trainer.train`), the queue, the synchronizer that carries weights, the policy loss, the
checkpoints' bookkeeping, the monitor. Ours: the sample strategy, by its name in config.yaml. This example's: the model,
the explorer, and the engine that makes an optimizer step, because Trinity's own engines (verl, tinker) want GPUs or a
service. Trinity has no setting for another engine, so `CpuTrainer` puts it in place of the function that chooses one.
"""

import argparse
import asyncio
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import ray
import torch
import trinity.trainer.trainer as trinity_trainer
from safetensors.torch import load_file, save_file
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tiny_policy import RESPONSE, Talk, TinyPolicy
from trinity.algorithm.policy_loss_fn import POLICY_LOSS_FN
from trinity.buffer import get_buffer_writer
from trinity.common.config import Config, load_config
from trinity.common.experience import EID, Experience
from trinity.manager.synchronizer import Synchronizer

ENGINE = "engine.safetensors"  # of a checkpoint: weights, the optimizer's moments, how many steps
STUDENT, TEACHER = {"seed": 1}, {"seed": 2, "sharpness": 6.0}


class CpuEngine(trinity_trainer.TrainEngineWrapper):
    """One optimizer step a batch, in the trainer's process."""

    def __init__(self, config: Config) -> None:
        self.folder = Path(config.checkpoint_job_dir)
        self.synchronizer = Synchronizer.get_actor(namespace=config.synchronizer.ray_namespace)
        self.model, self.steps = TinyPolicy(**STUDENT), 0
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=config.algorithm.optimizer.lr)
        self.loss = POLICY_LOSS_FN.get(config.algorithm.policy_loss_fn)(backend="tinker")
        self.clip = config.trainer.grad_clip

    async def prepare(self) -> None:
        if (self.folder / ENGINE).exists():
            saved = load_file(self.folder / ENGINE)
            self.steps = int(saved.pop("steps"))
            self.model.load_state_dict({name: saved.pop(name) for name in self.model.state_dict()})
            moments: dict[int, dict[str, torch.Tensor]] = {}
            for name, value in saved.items():
                _, number, kind = name.split("/")
                moments.setdefault(int(number), {})[kind] = value
            self.optimizer.load_state_dict(self.optimizer.state_dict() | {"state": moments})
        await self.upload_state_dict()

    @property
    def train_step_num(self) -> int:
        return self.steps

    async def train_step(self, batch_exps: list[Experience]) -> dict[str, float]:
        """The loss is the sum over rows, each with the weight that the composer gave it, over the number of rows."""
        self.optimizer.zero_grad()
        disagreement = 0.0
        for row in batch_exps:
            advantages = row.teacher_logprobs - row.logprobs  # Trinity's on_policy_distill, whose code imports verl
            new = self.model.logprobs(row.tokens[None].long(), RESPONSE)[0]
            given = {"old_logprob": row.logprobs, "action_mask": row.action_mask, "advantages": advantages}
            loss, _ = self.loss(logprob=new, **given)
            (loss * row.info["divopd_weight"] / len(batch_exps)).backward()
            disagreement -= float(advantages.mean()) / len(batch_exps)
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
        self.optimizer.step()
        self.steps += 1
        return {"actor/grad_norm": float(norm), "actor/disagreement": disagreement}

    async def upload_state_dict(self) -> None:
        weights = {name: value.clone() for name, value in self.model.state_dict().items()}
        await self.synchronizer.set_model_state_dict.remote(weights, self.steps)

    async def save_checkpoint(self, block_until_saved: bool = False, save_as_hf: bool = False) -> None:
        moments = self.optimizer.state_dict()["state"].items()
        whole = {"steps": torch.tensor(self.steps)} | self.model.state_dict()
        whole |= {f"optimizer/{number}/{kind}": value for number, of in moments for kind, value in of.items()}
        save_file(whole, self.folder / "engine.partial")
        (self.folder / "engine.partial").replace(self.folder / ENGINE)

    async def save_state_dict(self) -> None:
        raise NotImplementedError("weights travel through memory here")

    def sync_weight_nccl(self) -> None:
        raise NotImplementedError("weights travel through memory here")

    async def get_weight_sync_info(self) -> None:
        return None

    async def setup_weight_sync_group(self, *args: object) -> None:
        return None

    async def teardown_weight_sync_group(self) -> None:
        return None


class CpuTrainer(trinity_trainer.Trainer):
    """Trinity's trainer, loop and all, with another engine."""

    def __init__(self, config: Config) -> None:
        trinity_trainer.get_trainer_wrapper = CpuEngine
        super().__init__(config)


class Explorer:
    """Talks with the newest student it can get, lets the teacher score, and puts each talk into Trinity's queue."""

    def __init__(self, config: Config) -> None:
        torch.set_num_threads(1)
        self.writer = get_buffer_writer(config.buffer.trainer_input.experience_buffer)
        self.synchronizer = Synchronizer.get_actor(namespace=config.ray_namespace)
        self.student, self.teacher = TinyPolicy(**STUDENT), TinyPolicy(**TEACHER)

    async def explore(self, first: int) -> None:
        """For ever: the queue's capacity holds it back."""
        await self.writer.acquire()
        version, task = -1, first
        while True:
            if await self.synchronizer.get_latest_model_version.remote() > version:
                weights, version = await self.synchronizer.get_model_state_dict.remote()
                self.student.load_state_dict(weights)
            await self.writer.write(self.rollout(task, version))
            task += 1

    @torch.no_grad()
    def rollout(self, task: int, version: int) -> list[Experience]:
        talk, rows, more = Talk(task), [], True
        while more:
            prompt, response = talk.heard, self.student.respond(talk.heard)
            tokens = torch.tensor([[*prompt, *response]])
            row = Experience(
                eid=EID(batch=0, task=task, run=0, step=len(rows)),
                tokens=tokens[0],
                prompt_length=len(prompt),
                logprobs=self.student.logprobs(tokens, RESPONSE)[0],
                teacher_logprobs=self.teacher.logprobs(tokens, RESPONSE)[0],
                action_mask=torch.ones(RESPONSE, dtype=torch.bool),
                info={"model_version": version, "use_count": 0},
            )
            rows.append(row)
            more = talk.step(response)
        return rows


def make_config(folder: Path, steps: int | None) -> Config:
    """config.yaml, and what Trinity's check_and_update() would add: that wants GPUs, a tokenizer and verl."""
    config = load_config(str(Path(__file__).with_name("config.yaml")))
    config.checkpoint_root_dir = str(folder)
    config.checkpoint_job_dir = str(folder / config.project / config.name)
    config.ray_namespace = config.synchronizer.ray_namespace = f"{config.project}/{config.name}"
    config.synchronizer.trainer_sync_interval = config.synchronizer.sync_interval
    config.trainer.total_steps = steps or config.trainer.total_steps
    config.monitor.cache_dir = str(Path(config.checkpoint_job_dir) / "monitor")
    config.buffer.cache_dir = str(Path(config.checkpoint_job_dir) / "buffer")
    buffer = config.buffer.trainer_input.experience_buffer
    buffer.batch_size, buffer.ray_namespace = config.buffer.train_batch_size, config.ray_namespace
    buffer.path = str(Path(config.buffer.cache_dir) / "turns.jsonl")
    return config


async def train(config: Config) -> None:
    trainer = CpuTrainer.get_actor(config)
    await trainer.prepare.remote()
    explorer = ray.remote(Explorer).options(num_cpus=0.5).remote(config)
    begun = await trainer.__ray_call__.remote(lambda self: self.train_step_num)
    exploring = explorer.explore.remote(first=1_000_000 * begun)  # tasks that no run before this one has seen
    await trainer.train.remote()
    ray.cancel(exploring)
    with suppress(ray.exceptions.RayError):
        await exploring
    await trainer.shutdown.remote()


def print_figures(config: Config) -> None:
    """What Trinity's monitor has written: does the student come nearer to its teacher, and by which rows?"""
    written = EventAccumulator(str(Path(config.monitor.cache_dir) / "tensorboard" / config.trainer.name)).Reload()
    print("step  disagreement  rollouts  effective  oldest row  stale")
    names = ("actor/disagreement", "divopd/rollouts", "divopd/effective_rollouts", "sample/model_version/min")
    columns = [{event.step: event.value for event in written.Scalars(name)} for name in (*names, "divopd/stale")]
    for step in sorted(columns[0]):
        if step == 1 or step % 5 == 0:
            disagreement, rollouts, effective, version, stale = (column[step] for column in columns)
            age = step - 1 - version
            print(f"{step:4}  {disagreement:12.3f}  {rollouts:8.0f}  {effective:9.1f}  {age:10.0f}  {stale:5.0f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("runs"), help="checkpoints and metrics (default: runs)")
    parser.add_argument("--steps", type=int, help="train until this step (default: config.yaml's)")
    args = parser.parse_args()
    config = make_config(args.out.resolve(), args.steps)
    Path(str(config.buffer.cache_dir)).mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix="ray") as folder:
        ray.init(address="local", include_dashboard=False, num_cpus=4, _temp_dir=folder, log_to_driver=False)
        asyncio.run(train(config))
        ray.shutdown()
    print_figures(config)


if __name__ == "__main__":
    main()
