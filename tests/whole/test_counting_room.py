"""The example environment trains as its README says, at a smaller size."""

from collections.abc import Iterator
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="for want of the extra train")
pytest.importorskip("transformers", reason="for want of the extra train")

from divopd.cli import main  # noqa: E402
from divopd.store import Store  # noqa: E402

EXAMPLE = Path(__file__).parents[2] / "examples" / "counting_room"
ROOM = f"{EXAMPLE / 'counting_room.py'}:CountingRoom"


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.slow  # trains a teacher and two students
def test_the_example_trains(tmp_path: Path) -> None:
    """A teacher by `divopd sft`, a student that was weakened, and `divopd train` lets it climb."""
    teacher, capable, student, run = (str(tmp_path / name) for name in ("teacher", "capable", "student", "run"))
    learn = ["--updates", "200", "--evaluate-every", "20", "--until", "90"]
    assert main(["sft", ROOM, "--out", teacher, *learn]) == 0
    assert main(["sft", ROOM, "--out", capable, "--seed", "1", *learn]) == 0
    weaken = ["--labels", "weak", "--plausible", "0", "--random", "0.85", "--repeat", "0", "--learning-rate", "3e-4"]
    weaken += ["--updates", "60", "--evaluate-every", "2", "--until", "50"]
    assert main(["sft", ROOM, "--out", student, "--from", capable, "--seed", "1", *weaken]) == 0
    changed = {
        "environment.name": ROOM,
        "student.model": student,
        "teacher.model": teacher,
        "learner.updates": 12,
        "learner.lr": 1e-4,
        "evaluation.every": 6,
    }
    settings = [part for name, value in changed.items() for part in ("--set", f"{name}={value}")]
    assert main(["train", str(EXAMPLE / "train.yaml"), *settings, "--out", run]) == 0
    with Store.open_read_only(Path(run)) as store:
        rates = [record.success_rate for _, record in sorted(store.evaluations().items())]
    assert rates[0] <= 50, rates
    assert rates[-1] >= 80, rates
