"""A real Ray cluster of two nodes on this machine: whole trainings, with actors killed on the way."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

pytest.importorskip("ray", reason="for want of the extra ray")
import ray
from ray.cluster_utils import Cluster
from store_processes import make_rollout, make_test_composer

import door_agent
from divopd.audits.ledger import audit_ledger
from divopd.config import Config
from divopd.errors import FencedError, StoreError
from divopd.pipeline.begin import begin_run
from divopd.pipeline.on_ray import ActorWorker, RayRun, StoreActor
from divopd.pipeline.wishes import Wishes
from divopd.records import UpdateRecord
from divopd.run.doing import read_now
from divopd.run.durable_folder import numbered_folders
from divopd.run.folder import RunFolder
from divopd.store import Answer, Question, Store, count_incomplete, program_figures, read_attempts
from doubles.listener import Listener
from small_runs import config, outcome
from vllm_engines import remove_meeting_files
from waiting import wait_for
from word_model import save_model

MODELS: dict[str, dict[str, dict[str, str]]] = {  # by engine; vLLM has no kernel for the smallest ones
    "transformers": {},
    "vllm": {name: {"model": f"embedded:{name}", "engine": "vllm"} for name in ("student", "teacher")},
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Two nodes with a folder of their own: all sessions of a machine share the usual one."""
    with TemporaryDirectory(prefix="ray") as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_TMPDIR", folder)  # a short path: sockets are in it
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_agent_register_timeout_ms", "300000")  # a starved machine is no broken one
        node = {"num_cpus": 1, "object_store_memory": 80_000_000, "dashboard_agent_listen_port": 0}
        cluster = Cluster(initialize_head=True, head_node_args=node | {"include_dashboard": True, "dashboard_port": 0})
        cluster.add_node(**node)
        patch.setenv("RAY_ADDRESS", cluster.address)
        yield cluster
        cluster.shutdown()


def pid_of(actor: Any) -> int:
    return ray.get(actor.__ray_call__.remote(lambda self: os.getpid()))


def trained_keys(run: Path, *, updates: int) -> list[tuple[str, int]]:
    """What was trained, after the whole ledger was recomputed."""
    with Store.open_read_only(run) as store:
        audit_ledger(store)
        assert store.updates == updates
        return [key for update in range(updates) for key in store.journal(update).selected]


@pytest.mark.slow
@pytest.mark.crash
@pytest.mark.filterwarnings("default")  # Ray leaves sockets open
def test_killed_actors_lose_nothing_and_train_nothing_twice(cluster: Cluster, models: Path, tmp_path: Path) -> None:
    """SIGKILL of learner, store, weights, teacher and an explorer: the run ends, every turn has one fate.

    Both nodes have actors, and those on the other one never touch the run's folder. Two teachers score, and act for the
    explorers, which ask them.
    """
    changes = {"learner": {"updates": 20, "checkpoint_every": 3, "max_wait_s": 20}, "explorer": {"processes": 2}}
    changes |= {"teacher": {"count": 2}, "recovery": {"patience": 1, "takeover": 2}, "method": "divopd-r"}
    settings = config(models, clock="live", cluster="ray", evaluation={"every": 20, "tasks": 3}, **changes)
    begin_run(settings, tmp_path / "run")
    victims, nodes = ["learner", "store", "weights", "teacher", "explorer-1"], set()

    def kill(_record: UpdateRecord) -> None:
        if victims:
            victim = victims.pop(0)
            worker = run.workers.get(victim)
            actor = worker.actor if isinstance(worker, ActorWorker) else getattr(run, victim)
            nodes.add(ray.get(actor.__ray_call__.remote(lambda self: ray.get_runtime_context().get_node_id())))
            os.kill(pid_of(actor), signal.SIGKILL)

    listener = Listener(kill)
    run = RayRun(settings, tmp_path / "run", observer=listener, wishes=Wishes())
    run.run()
    restarts = [sentence.split()[1] for sentence in listener.sentences if "is started again" in sentence]
    assert (victims, sorted(restarts), len(nodes)) == ([], ["explorer-1", "learner", "teacher"], 2)
    _, account, rates = outcome(tmp_path / "run")
    assert sorted(rates) == [0, 20]
    trained = trained_keys(tmp_path / "run", updates=20)
    assert len(trained) == len(set(trained)) == account[1]
    with Store.open_read_only(tmp_path / "run") as store:
        assert any(store.teacher_turns(rollout) for rollout in {stored.rollout for stored in store.stored_turns()})


@pytest.mark.slow
@pytest.mark.crash
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("engine", MODELS)
def test_every_actor_of_two_machines_is_killed_once(
    cluster: Cluster, models: Path, tmp_path: Path, engine: str
) -> None:
    """A learner on both nodes, two teachers, two explorers that take new weights between turns: ten updates.

    Each actor dies once by SIGKILL, one after each update; no turn is lost, none is trained twice, the ledger is whole.
    """
    del cluster
    if engine == "vllm":
        pytest.importorskip("vllm", reason="for want of vLLM")
    learner = {"updates": 10, "checkpoint_every": 2, "max_wait_s": 120, "ranks": 2, "nodes": 2, "max_tokens": 400}
    settings = config(
        models,
        clock="live",
        cluster="ray",
        learner=learner,
        explorer={"processes": 2, "versions": "turn"},
        evaluation={"every": 10, "tasks": 3},
        student=MODELS[engine].get("student", {}),
        teacher={**MODELS[engine].get("teacher", {}), "count": 2},
    )
    begin_run(settings, tmp_path / "run")
    victims = ["learner", "store", "teacher", "explorer-0", "learner-1", "weights", "teacher-1", "explorer-1"]
    nodes: dict[str, str] = {}

    def kill(_record: UpdateRecord) -> None:
        if victims:
            victim = victims.pop(0)
            worker = run.workers.get(victim)
            actor = worker.actor if isinstance(worker, ActorWorker) else getattr(run, victim)
            nodes[victim] = ray.get(actor.__ray_call__.remote(lambda self: ray.get_runtime_context().get_node_id()))
            os.kill(pid_of(actor), signal.SIGKILL)

    listener = Listener(kill)
    run = RayRun(settings, tmp_path / "run", observer=listener, wishes=Wishes())
    run.run()
    assert victims == []
    assert nodes["learner"] != nodes["learner-1"]
    restarts = {sentence.split()[1] for sentence in listener.sentences if "is started again" in sentence}
    assert {"teacher", "teacher-1", "explorer-0", "explorer-1"} <= restarts
    assert restarts & {"learner", "learner-1"}
    assert [record.update for record in listener.updates] == list(range(10))
    trained = trained_keys(tmp_path / "run", updates=10)
    _, account, rates = outcome(tmp_path / "run")
    assert len(trained) == len(set(trained)) == account[1]
    assert sorted(rates) == [0, 10]
    newest = numbered_folders(tmp_path / "run" / "checkpoints")[-1]
    assert (newest / "weights.safetensors").exists()  # each machine has one rank, and that has all weights
    if engine == "vllm":
        remove_meeting_files()


@pytest.mark.slow
@pytest.mark.crash
@pytest.mark.filterwarnings("default")
def test_an_actor_that_hangs_is_named_and_started_again(cluster: Cluster, models: Path, tmp_path: Path) -> None:
    """SIGSTOP of the learner's second rank: Ray gets no answer from it, and its place is free for the next one."""
    del cluster
    learner = {"updates": 4, "checkpoint_every": 1, "max_wait_s": 60, "ranks": 2, "hung_after_s": 20}
    begin_run(settings := config(models, clock="live", cluster="ray", learner=learner), tmp_path / "run")

    def stop(record: UpdateRecord) -> None:
        if record.update == 1:
            worker = run.workers["learner-1"]
            assert isinstance(worker, ActorWorker)
            os.kill(pid_of(worker.actor), signal.SIGSTOP)

    listener = Listener(stop)
    run = RayRun(settings, tmp_path / "run", observer=listener, wishes=Wishes())
    run.run()
    [hung] = [
        sentence.partition(": it was not heard for ")[0] for sentence in listener.sentences if "hangs" in sentence
    ]
    assert hung == "the learner-1 hangs (rank 1 of the learner's 2)"
    assert [record.update for record in listener.updates] == list(range(4))
    assert len(trained_keys(tmp_path / "run", updates=4)) > 0


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_ctrl_c_stops_cleanly_and_a_job_goes_on(cluster: Cluster, models: Path, tmp_path: Path) -> None:
    """`divopd train` with two ranks: exit code 130 and a checkpoint; then `ray job submit` resumes it to the end."""
    learner = {"updates": 12, "checkpoint_every": 50, "max_wait_s": 20, "ranks": 2}
    settings = config(models, clock="live", cluster="ray", evaluation={"every": 12, "tasks": 3}, learner=learner)
    begin_run(settings, tmp_path / "run")
    command = [sys.executable, "-m", "divopd", "train", "--resume", str(tmp_path / "run")]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    with Store.open_read_only(tmp_path / "run") as store:
        while store.updates < 3:
            assert process.poll() is None
            time.sleep(0.1)
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(120) == 130
        newest = RunFolder(tmp_path / "run").newest_checkpoint()
        assert newest is not None
        assert int(newest.name) == store.updates - 1
    submit = [str(Path(sys.executable).parent / "ray"), "job", "submit", "--address", f"http://{cluster.webui_url}"]
    done = subprocess.run([*submit, "--", *command], capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    trained = trained_keys(tmp_path / "run", updates=12)
    assert len(trained) == len(set(trained))


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_sigusr1_checkpoints_and_sigterm_stops(cluster: Cluster, models: Path, tmp_path: Path) -> None:
    """SIGUSR1 reaches the learner's actor, and the run goes on; SIGTERM: a checkpoint of the newest update and 143."""
    del cluster
    run = tmp_path / "run"
    settings = config(models, clock="live", cluster="ray", learner={"updates": 1000, "checkpoint_every": 1000})
    begin_run(settings, run)
    command = [sys.executable, "-m", "divopd", "train", "--resume", str(run), "--grace", "300"]
    with (
        Store.open_read_only(run) as store,
        subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process,
    ):
        try:
            assert process.stderr is not None
            wait_for(lambda: len(store.update_records()) >= 2, while_=process, seconds=900)
            process.send_signal(signal.SIGUSR1)
            wait_for(lambda: numbered_folders(run / "checkpoints"), while_=process)
            [middle] = numbered_folders(run / "checkpoints")
            wait_for(lambda: len(store.update_records()) >= int(middle.name) + 3, while_=process)
            process.send_signal(signal.SIGTERM)
            said = process.stderr.read()
            assert process.wait() == 143, said
        finally:
            process.kill()
        assert "divopd: SIGUSR1: makes a checkpoint and goes on\ndivopd: SIGTERM: " in said
        assert "without a checkpoint" not in said
        assert [int(folder.name) for folder in numbered_folders(run / "checkpoints")][-1] == store.updates - 1


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_every_actor_says_what_it_does(cluster: Cluster, models: Path, tmp_path: Path) -> None:
    """Also those of the other node: the store's actor writes it in the run's folder; gone when the run is over."""
    del cluster
    settings = config(models, clock="live", cluster="ray", learner={"updates": 12}, evaluation={"every": 4, "tasks": 3})
    begin_run(settings, tmp_path / "run")
    folder, heard = RunFolder(tmp_path / "run"), dict[str, set[tuple[str, str]]]()

    class Watched(RayRun):
        """Looks each time that the run does."""

        def wait(self) -> None:
            super().wait()
            for name, now in read_now(folder.now).items():
                heard.setdefault(name, set()).add((now.role, now.what))

    Watched(settings, tmp_path / "run", observer=Listener(), wishes=Wishes()).run()
    assert {name: {role for role, _ in said} for name, said in heard.items()} == {
        "learner": {"learner"},
        "teacher": {"teacher"},
        "explorer-0": {"explorer", "evaluator"},
    }
    words = {what for said in heard.values() for _, what in said}
    assert {"training update", "scoring rollouts"} <= words
    assert any(what.startswith("evaluating version ") for what in words)
    assert any(what.startswith("playing rollouts with version ") for what in words)
    assert not folder.now.exists()


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_agent_programs_run_on_a_cluster(cluster: Cluster, tmp_path: Path) -> None:
    """Their calls are in the store, with what each row says, although the store's actor was killed on the way."""
    del cluster
    for seed, name in enumerate(("student", "teacher")):
        save_model(tmp_path / name, seed=seed, sharp=0.6)
    files = {split: str(tmp_path / f"{split}.jsonl") for split in door_agent.TASKS}
    for split, file in files.items():
        Path(file).write_text("\n".join(json.dumps({"id": task}) for task in door_agent.Doors.tasks(split)))
    environment = {"command": [sys.executable, door_agent.__file__], "tasks": files, "tools": "none", "horizon": 4}
    settings = Config.model_validate(
        {
            "clock": "live",
            "cluster": "ray",
            "environment": environment,
            "prompts": {"answer": "terse", "system": "", "max_prompt_tokens": 200},
            "student": {"model": str(tmp_path / "student")},
            "teacher": {"model": str(tmp_path / "teacher")},
            "composer": {"batch_size": 6, "cap": 2},
            "learner": {"updates": 8, "lr": 1e-2, "checkpoint_every": 2},
            "explorer": {"rollouts_in_flight": 3, "processes": 2, "max_response_tokens": 4, "versions": "turn"},
            "evaluation": {"every": 8, "tasks": 2},
        }
    )
    begin_run(settings, tmp_path / "run")
    killed: list[int] = []

    def kill(record: UpdateRecord) -> None:
        if record.update == 2:
            killed.append(pid_of(run.store))
            os.kill(killed[0], signal.SIGKILL)

    run = RayRun(settings, tmp_path / "run", observer=Listener(kill), wishes=Wishes())
    run.run()
    assert killed
    with Store.open_read_only(tmp_path / "run") as store:
        assert store.updates == 8
        rows = [store.whole(turn) for turn in store.stored_turns() if not store.is_settled(turn)]
        assert rows
        for row in rows:
            record = read_attempts(store, int(row.rollout[1:]))[-1].calls[row.turn]
            assert record is not None
            assert (record["prompt_ids"], record["completion_ids"]) == (row.prompt_ids, row.response_ids)
            assert (record["logprobs"], record["first_version"]) == (row.student_logprobs, row.version)
        figures = program_figures(store)
        assert figures is not None
        assert figures.calls >= len(rows)
        assert count_incomplete(store) <= settings.explorer.rollouts_in_flight * settings.explorer.processes


def test_a_call_of_the_store_may_come_twice(tmp_path: Path) -> None:
    """The answer was lost with the actor: the same call again changes nothing and gives the same batch."""
    Store.create(tmp_path / "store.db").close()
    before, after = StoreActor(tmp_path), StoreActor(tmp_path)  # the one that died, and the one that Ray started
    epoch = before.call("begin_learner", (), {})
    for actor in (before, after):
        for number in range(3):
            actor.call("put", (make_rollout(f"e.{number}"),), {})
    batch = before.compose(make_test_composer(), 0, epoch)
    account = after.call("arrived", (), {})
    assert after.compose(make_test_composer(), 0, epoch) == batch
    assert (after.updates(), after.call("arrived", (), {})) == (1, account)
    with pytest.raises(StoreError, match="asked to compose update 3"):
        after.compose(make_test_composer(), 3, epoch)
    after.call("begin_learner", (), {})
    with pytest.raises(FencedError):
        after.compose(make_test_composer(), 0, epoch)
    waiting, question = make_rollout("w.0"), Question(7, "t", [1], temperature=1.0, max_tokens=2, seed=3)
    for actor in (before, after):
        actor.call("offer", (waiting,), {"generated_tokens": 1})
        actor.call("ask", ("explorer-0", [question]), {})
        assert actor.call("claim", ("teacher-0", 9), {"seconds": 60.0}) == [waiting]
        assert actor.call("claim_questions", ("teacher-0", 9), {"seconds": 60.0}) == [question]
    for name, values, told in (("put_scored", (waiting,), True), ("answer", (7, Answer([5], [-1.0])), True)):
        assert [actor.call(name, values, {}) for actor in (before, after)] == [told, False]
    numbers = [actor.call("begin_attempt", (3, {"task": "t"}), {}) for actor in (before, after)]
    assert numbers == [1, 2]  # the first one is lost, as a number of `reserve` is
    for actor in (before, after):
        actor.call("intend_call", (3, 2, 0, {"agent": "main"}), {})
        actor.call("record_call", (3, 2, 0, {"agent": "main", "parsed": "text"}), {})
        actor.call("end_attempt", (3, 2, {"ended": "well", "counts": {"calls": 1}}), {})
    with Store.open_read_only(tmp_path) as store:
        lost, whole = read_attempts(store, 3)
        figures = program_figures(store)
    assert (lost.calls, lost.ended, whole.is_complete) == ({}, None, True)
    assert figures is not None
    assert (figures.attempts, figures.calls) == (1, 1)
    for actor in (before, after):
        assert actor.call("answers", ([7],), {}) == {7: Answer([5], [-1.0])}
    for actor in (before, after):
        actor.call("forget_questions", ([7],), {})
    with pytest.raises(StoreError, match="asked for 'turns_of'"):
        after.call("turns_of", ("e.0",), {})
