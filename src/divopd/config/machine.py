"""The sections of the configuration that are about machines: what they have, and which GPUs each role gets.

Files in configs/machines say them together with what else depends on the machine (engines, ranks, explorers); the
option --machine lays such a file over a setting.
"""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from pydantic import field_validator as validates


class Part(BaseModel):
    """A section of the configuration."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class MachinePart(Part):
    """What the machines have on which a run is planned: the dry run compares it with what the run needs.

    null: nobody knows, and nothing is compared.
    """

    name: str | None = None
    """How messages call it."""
    nodes: PositiveInt = 1
    """How many machines there are, each like the others."""
    gpus: NonNegativeInt | None = None
    """GPUs of each machine."""
    gpu_memory_gb: PositiveFloat | None = None
    """Memory of one GPU, in 10⁹ bytes."""
    memory_gb: PositiveFloat | None = None
    """Main memory of each machine, in 10⁹ bytes."""
    peak_tflops: PositiveFloat | None = None
    """10¹² products and sums a second of one GPU, in bfloat16 and without sparsity."""
    bandwidth_gb_s: PositiveFloat | None = None
    """10⁹ bytes a second between one GPU and its memory."""
    efficiency: Annotated[float, Field(gt=0, le=1)] = 0.4
    """The share of peak and bandwidth that is taken to be reached."""
    source: str | None = None
    """Where memory, peak and bandwidth of the GPU were read."""


class GpusPart(Part):
    """GPUs of each actor on a cluster: of a rank of the learner, of a teacher, of the evaluator, of an explorer.

    Less than one: several actors share a GPU. null: as many as its engine spreads over where the model is on cuda
    (tensor_parallel), else none.
    """

    learner: NonNegativeFloat | None = None
    """Of each rank of the learner."""
    teacher: NonNegativeFloat | None = None
    """Of each teacher."""
    evaluator: NonNegativeFloat | None = None
    """Of the evaluator."""
    explorer: NonNegativeFloat | None = None
    """Of each explorer."""

    @validates("*")
    @classmethod
    def _whole(cls, gpus: float | None) -> float | None:
        if gpus is not None and gpus > 1 and gpus % 1:
            raise ValueError(f"got {gpus}; expected a share of one GPU, or a whole number of them")
        return gpus
