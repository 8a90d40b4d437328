"""Parts of a checkpoint: each rank writes its own, and whoever reads them needs not be as many."""

import random
import threading
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="for want of the extra train")
pytest.importorskip("safetensors", reason="for want of the extra train")

from torch import Tensor  # noqa: E402

from divopd.errors import CheckpointError  # noqa: E402
from divopd.run.durable_folder import verify, write_hashed_folder  # noqa: E402
from divopd.run.tensor_parts import Part, copied_part, count_parts, opened, part_files  # noqa: E402
from divopd.run.writing import (  # noqa: E402
    PARTS,
    Writing,
    begin_parts,
    collect_parts,
    hand_in_part,
    write_part,
)


def tensors(seed: int = 0) -> dict[str, Tensor]:
    torch.manual_seed(seed)
    return {"a": torch.randn(7, 3), "b": torch.randn(2, 2), "c": torch.arange(5), "step": torch.tensor(4.0)}


def held(part: Part, whole: dict[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    """What a rank has of them, cut by torch itself."""
    cut = {name: torch.chunk(tensor, part.of) for name, tensor in whole.items() if tensor.ndim}
    empty = {name: tensor[:0] for name, tensor in whole.items() if tensor.ndim}
    mine = {name: pieces[part.number] if part.number < len(pieces) else empty[name] for name, pieces in cut.items()}
    return {"weights": {name: piece.contiguous() for name, piece in mine.items()} | _first(part, whole)}


def _first(part: Part, whole: dict[str, Tensor]) -> dict[str, Tensor]:
    return {} if part.number else {name: tensor for name, tensor in whole.items() if not tensor.ndim}


@pytest.mark.parametrize("writers", [1, 2, 3, 8])
@pytest.mark.parametrize("readers", [1, 2, 5])
def test_any_number_of_ranks_reads_what_any_number_wrote(tmp_path: Path, writers: int, readers: int) -> None:
    """Each reader gets the rows that FSDP2 gives it, and together they are the whole."""
    whole = tensors()
    for number in range(writers):
        write_part(tmp_path, held(Part(number, writers), whole), Part(number, writers))
    names = {path.name for path in tmp_path.iterdir()}
    assert names == set(part_files("weights", writers))
    assert count_parts(names, "weights") == writers
    with opened(tmp_path, "weights", writers) as files:
        assert files.kinds() == {name: f"{tensor.dtype} {list(tensor.shape)}" for name, tensor in whole.items()}
        for name, tensor in whole.items():
            assert torch.equal(files.whole(name), tensor)
            for number in range(readers if tensor.ndim else 0):
                part = Part(number, readers)
                expected = held(part, whole)["weights"][name]
                assert torch.equal(files.rows(name, part.rows(len(tensor))), expected)


def test_a_part_is_a_copy() -> None:
    """The next update changes the model while the thread still writes."""
    whole = tensors()
    copies = copied_part(whole, Part(0, 1))
    for tensor in whole.values():
        tensor.zero_()
    for name, tensor in tensors().items():
        assert torch.equal(copies[name], tensor)
    assert copied_part(whole, Part(1, 2)) == {}


def write_together(folder: Path, number: int, seed: int) -> None:
    """Two ranks, a thread each, write a folder."""
    whole, first, second = tensors(seed), Part(0, 2), Part(1, 2)
    begin_parts(folder, number)
    other = Writing(lambda: hand_in_part(folder, held(second, whole), second))

    def fill(target: Path) -> dict[str, dict[str, object]]:
        return write_part(target, held(first, whole), first) | collect_parts(folder, target, first)

    write_hashed_folder(folder, number, fill)
    other.wait()


def test_parts_become_one_folder(tmp_path: Path) -> None:
    """With the digests that each rank took while it wrote; nothing of the way there is left, nor of killed ranks."""
    (tmp_path / PARTS).mkdir()
    (tmp_path / PARTS / "1.json").write_text('{"written": {"of before": {}}}')
    write_together(tmp_path, 3, seed=1)
    assert [path.name for path in tmp_path.iterdir()] == ["000003"]
    assert sorted(verify(tmp_path / "000003")["files"]) == part_files("weights", 2)
    with opened(tmp_path / "000003", "weights", 2) as files:
        assert torch.equal(files.whole("a"), tensors(1)["a"])


def test_a_part_that_cannot_be_written_leaves_the_older_ones(tmp_path: Path) -> None:
    """The first rank says which rank could not, and why; the folder of before is whole."""
    write_together(tmp_path, 3, seed=1)
    whole, first, second = tensors(2), Part(0, 2), Part(1, 2)
    begin_parts(tmp_path, 4)
    (tmp_path / PARTS / "weights-2-of-2.safetensors").mkdir()  # in the way

    def fill(target: Path) -> dict[str, dict[str, object]]:
        return write_part(target, held(first, whole), first) | collect_parts(tmp_path, target, first)

    writing = Writing(lambda: write_hashed_folder(tmp_path, 4, fill))
    with pytest.raises(IsADirectoryError):
        hand_in_part(tmp_path, held(second, whole), second)
    with pytest.raises(CheckpointError, match=r"000004: cannot be written \(rank 1: .*older ones are untouched"):
        writing.wait()
    assert [path.name for path in tmp_path.glob("[0-9]*")] == ["000003"]
    verify(tmp_path / "000003")


def test_a_killed_rank_leaves_nothing_under_a_valid_name(tmp_path: Path) -> None:
    """Whichever files were there when all were killed: no number is given before all parts are in, none is taken up."""
    source = random.Random(0)
    for number in range(3):
        begin_parts(tmp_path, number)
        assert not list((tmp_path / PARTS).iterdir())
        whole, second = tensors(number), Part(1, 2)
        if source.random() < 0.5:
            hand_in_part(tmp_path, held(second, whole), second)
        write_part(tmp_path / PARTS, held(second, whole), second)
        assert [path.name for path in tmp_path.iterdir()] == [PARTS]
    write_together(tmp_path, 9, seed=9)
    assert [path.name for path in tmp_path.iterdir()] == ["000009"]


def test_what_is_written_by_a_thread_is_waited_for() -> None:
    """It is not done before, and what went wrong is raised by whoever waits."""
    go_on = threading.Event()
    writing = Writing(go_on.wait)
    assert not writing.done
    go_on.set()
    writing.wait()
    assert writing.done
    with pytest.raises(ZeroDivisionError):
        Writing(lambda: 1 / 0).wait()
