"""vLLM's own weight transfer, both ends of it: NCCL from GPU to GPU, or CUDA's IPC between processes that share one.

`Receiver` is the explorer's end: it pauses the engine with its requests kept, takes a version, stamps it and goes on.
`Sender` is the learner's. Both are written against the classes of vLLM 0.32 (vllm.distributed.weight_transfer); a test
drives them with a real engine on CPU and a backend of its own. NCCL and IPC themselves were never run by us.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from divopd.models.weights import Kinds

if TYPE_CHECKING:
    from torch import Tensor


class Receiver:
    """A vLLM engine that takes versions while its requests wait.

    `settle_head` prepares a head that is tied to the embedding, as is done after loading.
    """

    def __init__(self, llm: Any, *, settle_head: Callable[[Any], None] | None) -> None:
        self._llm, self._settle_head = llm, settle_head
        self._joined = False
        self.version: int | None = None

    def do(self, step: str, given: dict[str, Any]) -> None:
        """One step of a transfer; between `start` and `finish` no token is generated."""
        llm = self._llm
        if step == "begin":
            if self._joined:  # a group of before, in which somebody has died
                llm.shutdown_weight_transfer_engine()
            llm.init_weight_transfer_engine({"init_info": given})
            self._joined = True
        elif step == "start":
            llm.sleep(level=0, mode="keep")
            llm.start_weight_update()
        elif step == "update":
            llm.update_weights({"update_info": given})
        else:
            self._finish(given["version"])

    def _finish(self, version: int) -> None:
        """What was read with older weights is forgotten: requests that wait read their prompts again."""
        self._llm.finish_weight_update(str(version))
        if self._settle_head is not None:
            self._llm.apply_model(self._settle_head)
        self._llm.reset_prefix_cache(reset_running_requests=True)
        self._llm.wake_up(tags=["scheduling"])
        self.version = int(self._llm.get_weight_version())


class Client(Protocol):
    """vLLM's VLLMWeightSyncClient: how a sender reaches the engines."""

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None: ...
    def start_weight_update(self) -> None: ...
    def update_weights(self, update_info: Any) -> None: ...
    def finish_weight_update(self, weight_version: str | None = None) -> None: ...


@dataclass(frozen=True)
class Link:
    """By what the learner and the engines are joined. `workers` are the GPUs of all engines together."""

    backend: str  # nccl or ipc, as vLLM calls them
    address: str
    port: int
    workers: int

    def info(self) -> Any:
        """What vLLM's trainer end is made from; the learner's first rank is the sender."""
        if self.backend == "ipc":
            from vllm.distributed.weight_transfer.ipc_engine import IPCTrainerInitInfo

            return IPCTrainerInitInfo(rank=0, packed=True)
        from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerInitInfo

        return NCCLTrainerInitInfo(
            rank=0, master_address=self.address, master_port=self.port, world_size=1 + self.workers
        )


class Sender:
    """The learner's end. Making it joins the engines; each `send` gives them the weights that `stream` yields then."""

    def __init__(
        self,
        info: Any,
        client: Client,
        *,
        kinds: Kinds,
        stream: Callable[[], Iterator[tuple[str, "Tensor"]]],
    ) -> None:
        import torch
        from vllm.distributed.weight_transfer import ParamMeta, WeightSource, WeightTransferTrainerFactory

        class Source(WeightSource):
            """The learner's tensors by name, one at a time: a sharded one is whole only while it is sent."""

            def metadata(self) -> list[ParamMeta]:
                return [ParamMeta(name, getattr(torch, dtype), shape) for name, (dtype, shape) in kinds.items()]

            def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
                return stream()

        self._engine = WeightTransferTrainerFactory.trainer_init(info, client=client, source=Source())

    def send(self) -> None:
        self._engine.send_weights()

    def close(self) -> None:
        self._engine.shutdown()
