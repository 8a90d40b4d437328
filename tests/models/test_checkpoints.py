"""Checkpoints and published weights: whole or not at all, and never trusted when damaged."""

import hashlib
import json
import os
import random
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="for want of the extra train")
pytest.importorskip("safetensors", reason="for want of the extra train")

from torch import Tensor  # noqa: E402
from torch.optim import AdamW, Optimizer  # noqa: E402

from divopd.errors import CheckpointError  # noqa: E402
from divopd.models.weights import gathered_weights  # noqa: E402
from divopd.run.checkpoints import (  # noqa: E402
    CHECKPOINT_FILES,
    latest_checkpoint,
    load_checkpoint,
    load_weights,
    publish_weights,
    save_checkpoint,
    verify,
)
from divopd.run.durable_folder import write_folder  # noqa: E402


class Tied(torch.nn.Module):
    """A toy language model with tied embeddings, dropout (so that random state matters) and a saved buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(11, 8)
        self.norm = torch.nn.BatchNorm1d(8)
        self.head = torch.nn.Linear(8, 11)
        self.head.weight = self.embed.weight

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(torch.nn.functional.dropout(self.norm(self.embed(ids)), 0.3))


def make(seed: int) -> tuple[Tied, AdamW]:
    torch.manual_seed(seed)
    model = Tied()
    return model, torch.optim.AdamW(model.parameters(), lr=0.01, betas=(0.8, 0.95))


def train(model: Tied, optimizer: Optimizer, updates: int) -> None:
    for _ in range(updates):
        ids = torch.randint(11, (16,))
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(ids), ids.roll(1)).backward()
        optimizer.step()


def same(one: Tied, other: Tied) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one.state_dict().values(), other.state_dict().values(), strict=True))


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("original") / "c"
    model, optimizer = make(0)
    for update in (2, 4):
        train(model, optimizer, 2)
        save_checkpoint(folder, update=update, model=model, optimizer=optimizer, state={"pending": [update]})
    return folder


@pytest.fixture
def saved(original: Path, tmp_path: Path) -> Path:
    """A folder of one's own with the checkpoints of updates 2 and 4."""
    return Path(shutil.copytree(original, tmp_path / "c"))


CONTINUE = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import torch
torch.set_num_threads(int(sys.argv[4]))
from test_checkpoints import make, train
from divopd.models.weights import gathered_weights
from divopd.run.checkpoints import load_checkpoint, publish_weights
model, optimizer = make(99)
loaded = load_checkpoint(sys.argv[2], model=model, optimizer=optimizer)
assert (loaded.update, loaded.state) == (4, {"pending": [4]})
train(model, optimizer, 2)
publish_weights(sys.argv[3], 6, gathered_weights(model))
"""


@pytest.mark.slow  # a process that imports all: the next test is the same within one
def test_a_new_process_continues_to_the_same_weights(saved: Path, tmp_path: Path) -> None:
    """Two updates after a restore in another process give the bits that two more updates here give."""
    here, optimizer = make(7)
    load_checkpoint(saved / "000004", model=here, optimizer=optimizer)
    train(here, optimizer, 2)
    places = [str(Path(__file__).parent), str(saved / "000004"), str(tmp_path / "w")]
    threads = str(torch.get_num_threads())  # another number may round differently
    subprocess.run([sys.executable, "-c", CONTINUE, *places, threads], check=True, timeout=120)
    there, _ = make(3)
    load_weights(tmp_path / "w" / "000006", there)
    assert same(here, there)


def test_a_restore_equals_never_having_stopped(tmp_path: Path) -> None:
    """Saving and restoring in the middle changes neither the weights nor the random numbers that follow."""
    model, optimizer = make(0)
    train(model, optimizer, 2)
    save_checkpoint(tmp_path, update=2, model=model, optimizer=optimizer, state={})
    train(model, optimizer, 2)
    draws = [random.random(), float(np.random.rand()), float(torch.rand(1))]
    random.seed(1)
    np.random.seed(1)
    other, its_optimizer = make(5)
    load_checkpoint(tmp_path / "000002", model=other, optimizer=its_optimizer)
    train(other, its_optimizer, 2)
    assert same(model, other)
    assert [random.random(), float(np.random.rand()), float(torch.rand(1))] == draws
    assert its_optimizer.param_groups[0]["betas"] == (0.8, 0.95)


def test_a_checkpoint_before_the_first_update_restores(tmp_path: Path) -> None:
    """An optimizer that has not stepped yet has no state, and that is saved and restored as well."""
    model, optimizer = make(0)
    save_checkpoint(tmp_path, update=0, model=model, optimizer=optimizer, state={"a": [1, None, 0.1]})
    other, its_optimizer = make(1)
    assert load_checkpoint(tmp_path / "000000", model=other, optimizer=its_optimizer).state == {"a": [1, None, 0.1]}
    assert same(model, other)


@pytest.mark.parametrize("name", [*CHECKPOINT_FILES, "manifest.json"])
@pytest.mark.parametrize(
    "damage", ["truncated", "emptied", "first bit", "middle bit", "last bit", "removed", "appended"]
)
def test_damage_is_refused_and_the_previous_one_offered(saved: Path, name: str, damage: str) -> None:
    """Whatever is wrong with whichever file: the error names the file and the older checkpoint; nothing is filled."""
    file = saved / "000004" / name
    content = bytearray(file.read_bytes())
    positions = {"first bit": 0, "middle bit": len(content) // 2, "last bit": len(content) - 1}
    if damage == "removed":
        file.unlink()
    elif damage in positions:
        content[positions[damage]] ^= 1
        file.write_bytes(content)
    else:
        file.write_bytes({"truncated": content[:-1], "emptied": b"", "appended": content + b"\n"}[damage])
    model, optimizer = make(9)
    before = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    with pytest.raises(CheckpointError) as refused:
        load_checkpoint(latest_checkpoint(saved) or "", model=model, optimizer=optimizer)
    assert name in str(refused.value)
    assert str(saved / "000002") in str(refused.value)
    assert all(torch.equal(before[key], tensor) for key, tensor in model.state_dict().items())
    assert not optimizer.state
    load_checkpoint(saved / "000002", model=model, optimizer=optimizer)


def test_any_single_flipped_bit_is_found(saved: Path) -> None:
    """Random bits in random files, one at a time: verify refuses every time, and accepts the repaired folder."""
    source = random.Random(0)
    files = sorted((saved / "000004").iterdir())
    for _ in range(60):
        file = source.choice(files)
        content = file.read_bytes()
        position, bit = source.randrange(len(content)), source.randrange(8)
        file.write_bytes(content[:position] + bytes([content[position] ^ 1 << bit]) + content[position + 1 :])
        with pytest.raises(CheckpointError, match=file.name):
            verify(saved / "000004")
        file.write_bytes(content)
    assert verify(saved / "000004")["number"] == 4


def test_the_offer_skips_a_previous_one_that_is_damaged_too(saved: Path) -> None:
    """Only a whole checkpoint is offered; without one the message says so."""
    for number in ("000002", "000004"):
        (saved / number / "state.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"state\.json: bytes is 2, .*no older whole one"):
        verify(saved / "000004")
    with pytest.raises(CheckpointError, match="no such folder"):
        verify(saved / "000009")


def test_a_copied_or_extended_folder_is_refused(saved: Path) -> None:
    """A folder under another number, or with a file that nobody listed, is not what was written."""
    shutil.copytree(saved / "000004", saved / "000005")
    with pytest.raises(CheckpointError, match=r"manifest\.json: got format 1, number 4, expected format 1, number 5"):
        verify(saved / "000005")
    (saved / "000004" / "extra.bin").write_bytes(b"x")
    with pytest.raises(CheckpointError, match=r"extra\.bin is not in the manifest"):
        verify(saved / "000004")


def test_weights_of_another_model_are_refused(saved: Path) -> None:
    """Names, shapes and types are compared before anything is filled."""
    with pytest.raises(CheckpointError, match="is in the model, not in the file"):
        load_weights(saved / "000004", torch.nn.Linear(8, 11))
    wide = Tied()
    wide.head.bias = torch.nn.Parameter(torch.zeros(12))
    with pytest.raises(CheckpointError, match=r"'head.bias' is torch.float32 \[11\], the model expects torch.float32"):
        load_weights(saved / "000004", wide)
    model, _ = make(0)
    reordered = torch.optim.AdamW(list(model.parameters())[::-1])
    with pytest.raises(CheckpointError, match=r"optimizer\.json"):
        load_checkpoint(saved / "000004", model=model, optimizer=reordered)


def test_published_weights_carry_the_digest_of_what_is_loaded(tmp_path: Path) -> None:
    """The same weights have the same digest, other weights another; a checkpoint is not demanded of them."""
    model, optimizer = make(0)
    for version in (0, 1):
        publish_weights(tmp_path, version, gathered_weights(model))
    train(model, optimizer, 1)
    publish_weights(tmp_path, 2, gathered_weights(model))
    digests = [verify(tmp_path / f"00000{v}")["files"]["weights.safetensors"]["sha256"] for v in range(3)]
    assert digests[0] == digests[1] != digests[2]
    assert digests[2] == hashlib.sha256((tmp_path / "000002" / "weights.safetensors").read_bytes()).hexdigest()
    other, its_optimizer = make(4)
    load_weights(tmp_path / "000002", other)
    assert same(model, other)
    with pytest.raises(CheckpointError, match="got published weights, expected a checkpoint"):
        load_checkpoint(tmp_path / "000002", model=other, optimizer=its_optimizer)


def test_only_the_newest_are_kept_and_the_same_number_is_replaced(tmp_path: Path) -> None:
    """`keep` counts the newest by number (also beyond six digits), and leftovers of a killed process vanish."""
    (tmp_path / ".000001.partial").mkdir()
    for count, number in enumerate((8, 9, 999_999, 1_000_000, 9)):
        write_folder(tmp_path, number, lambda target, n=count: (target / "a").write_text(str(n)), keep=3)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["000009", "1000000", "999999"]
    assert (tmp_path / "000009" / "a").read_text() == "4"
    assert latest_checkpoint(tmp_path) == tmp_path / "1000000"
    assert latest_checkpoint(tmp_path / "nothing") is None


def test_a_failed_write_leaves_the_older_ones(saved: Path) -> None:
    """When the system refuses a write, a CheckpointError says so and the folder is as it was."""
    model, optimizer = make(0)
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200, hard))  # no file may grow beyond 200 bytes
    try:
        with pytest.raises(CheckpointError, match=r"000006: cannot be written \(.*older ones are untouched"):
            save_checkpoint(saved, update=6, model=model, optimizer=optimizer, state={})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    assert sorted(path.name for path in saved.iterdir()) == ["000002", "000004"]
    verify(saved / "000004")


WRITE_FOREVER = """
import itertools, pathlib, random, sys
from divopd.run.durable_folder import write_folder
def fill(target):
    for name in ("a", "b", "c"):
        (target / name).write_bytes(random.randbytes(100_000))
for number in itertools.count(int(sys.argv[2])):
    write_folder(pathlib.Path(sys.argv[1]), number, fill, keep=2)
    print(number, flush=True)
"""


@pytest.mark.crash
def test_a_killed_writer_leaves_only_whole_folders(tmp_path: Path) -> None:
    """SIGKILL at random moments: every numbered folder verifies, and what was acknowledged is still the newest."""
    source = random.Random(0)
    for attempt in range(1, 13):
        command = [sys.executable, "-c", WRITE_FOREVER, str(tmp_path), str(attempt * 1000)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout
            acknowledged = int(child.stdout.readline())
            time.sleep(source.uniform(0.0, 0.2))
            child.kill()
            acknowledged = max([acknowledged, *map(int, child.stdout.read().split())])
        numbers = [int(path.name) for path in tmp_path.iterdir() if not path.name.startswith(".")]
        for number in numbers:
            verify(tmp_path / f"{number:06d}")
        assert max(numbers) in (acknowledged, acknowledged + 1)  # killed after the rename, before the answer


def test_the_manifest_is_plain_json(saved: Path) -> None:
    """A person can read which files there are and how large."""
    manifest = json.loads((saved / "000004" / "manifest.json").read_text())
    assert sorted(manifest["files"]) == sorted(CHECKPOINT_FILES)


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="there is no /proc that tells what is synced")
def test_a_folder_is_on_disk_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its files, its list of files and itself; then its name, and the folder that holds the name."""
    synced: list[str] = []
    sync = os.fsync

    def note(descriptor: int) -> None:
        synced.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).relative_to(tmp_path.resolve()).as_posix())
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", note)
    write_folder(tmp_path, 3, lambda folder: (folder / "data").write_text("x"), keep=None)
    partial = ".000003.partial"
    assert synced == [f"{partial}/data", f"{partial}/manifest.json", partial, "."]
    assert (tmp_path / "000003" / "data").read_text() == "x"
