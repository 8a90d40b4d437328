"""Weights sent into a real vLLM engine on CPU, by its own transfer and a backend that needs no GPU."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, ClassVar

import numpy as np
import pytest

pytest.importorskip("torch", reason="for want of the extra train")
import torch

from divopd.models.model_files import model_folder
from divopd.models.transformers_policy import TransformersPolicy
from divopd.models.vllm_policy import VllmPolicy
from divopd.models.vllm_transfer import Link, Receiver, Sender
from divopd.models.weights import streamed_kinds, streamed_weights
from vllm_engines import give_back

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),  # those of vLLM and of what it imports
    pytest.mark.skipif(find_spec("vllm") is None, reason="for want of vLLM"),
]
PROMPT = [int(token) for token in np.random.default_rng(0).integers(4, 300, 60)]
TOLERANCE = 1e-4  # nats, in float32


def register() -> None:
    """A third backend beside nccl and ipc: tensors are handed over as they are."""
    from vllm.distributed.weight_transfer import (
        TrainerWeightTransferEngine,
        WeightTransferEngine,
        WeightTransferEngineFactory,
        WeightTransferTrainerFactory,
    )
    from vllm.distributed.weight_transfer.base import (
        TrainerInitInfo,
        WeightTransferInitInfo,
        WeightTransferUpdateInfo,
    )
    from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

    if "here" in WeightTransferEngineFactory._registry:
        return

    @dataclass
    class HereInit(WeightTransferInitInfo):
        rank_offset: int

    @dataclass
    class HereUpdate(WeightTransferUpdateInfo):
        tensors: list[tuple[str, torch.Tensor]]

    class Here(WeightTransferEngine[HereInit, HereUpdate]):
        """As the NCCL engine: layer by layer, in the names of a checkpoint."""

        init_info_cls, update_info_cls = HereInit, HereUpdate

        def init_transfer_engine(self, init_info: HereInit) -> None:
            assert init_info.rank_offset == 1

        def start_weight_update(self) -> None:
            initialize_layerwise_reload(self.model)

        def finish_weight_update(self) -> None:
            finalize_layerwise_reload(self.model, self.model_config)

        def update_weights(self, update_info: dict[str, Any]) -> None:  # there is no accelerator to wait for
            self.receive_weights(self.parse_update_info(update_info))

        def receive_weights(self, update_info: HereUpdate) -> None:
            self.model.load_weights(update_info.tensors)

        def shutdown(self) -> None:
            pass

    class HereTrainer(TrainerWeightTransferEngine[Any]):
        init_info_cls = TrainerInitInfo

        @classmethod
        def trainer_init(cls, init_info: Any, *, client: Any, source: Any = None) -> Any:
            client.init_weight_transfer_engine({"rank_offset": 1})
            return cls(client=client, source=source, is_sender=init_info.is_sender)

        def send_weights(self) -> None:
            assert self.source is not None
            sent = list(self.source)
            assert [(name, t.dtype, tuple(t.shape)) for name, t in sent] == [
                (meta.name, meta.dtype, meta.shape) for meta in self.source.metadata()
            ]
            self.client.start_weight_update()
            for start in range(0, len(sent), 5):
                self.client.update_weights({"tensors": sent[start : start + 5]})
            self.client.finish_weight_update()

    WeightTransferEngineFactory.register_engine("here", Here)
    WeightTransferTrainerFactory.register_engine("here", HereTrainer)


class Client:
    """Calls the receiver as a board would."""

    def __init__(self, receiver: Receiver) -> None:
        self.receiver, self.version, self.paused = receiver, 0, False

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        self.receiver.do("begin", init_info)

    def start_weight_update(self) -> None:
        self.receiver.do("start", {})

    def update_weights(self, update_info: Any) -> None:
        self.receiver.do("update", update_info)

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        assert weight_version is None
        self.receiver.do("finish", {"version": self.version})


@pytest.fixture(scope="module", autouse=True)
def _what_engines_share() -> Iterator[None]:
    yield
    if "vllm" in sys.modules:
        give_back()


@pytest.fixture(scope="module")
def engine() -> VllmPolicy:
    register()
    folder = model_folder("embedded:student")
    return VllmPolicy(folder, dtype="float32", context=200, sequences=2, transfer="here")


def info() -> Any:
    from vllm.distributed.weight_transfer.base import TrainerInitInfo

    @dataclass
    class HereInfo(TrainerInitInfo):
        backend: ClassVar[str] = "here"

    return HereInfo(rank=0)


def disturb(policy: TransformersPolicy) -> None:
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in policy.model.parameters():
            parameter += 0.05 * parameter.std() * torch.randn_like(parameter) if parameter.ndim > 1 else 0.02


def test_a_response_goes_on_with_the_weights_that_came(engine: VllmPolicy) -> None:
    """Paused between two tokens, kept, stamped: later tokens have the log probabilities of the new weights."""
    learner = TransformersPolicy.load(model_folder("embedded:student"))
    old = TransformersPolicy.load(model_folder("embedded:student"))
    client = Client(engine.receiver())
    sender = Sender(
        info(),
        client,
        kinds=streamed_kinds(learner.model, None),
        stream=lambda: streamed_weights(learner.model, None),
    )
    disturb(learner)
    engine.add("a", PROMPT, temperature=1.0, max_tokens=24, seed=3)
    for _ in range(8):
        assert engine.step() == []
    client.version = 7
    sender.send()
    assert engine.pending == 1
    assert client.receiver.version == 7
    ended = []
    for _ in range(200):
        ended += engine.step()
        if ended:
            break
    [(key, response)] = ended
    assert key == "a"
    row = [*PROMPT, *response.ids]
    spans = [[(len(PROMPT), len(row))]]
    before, after = (policy.score([row], spans)[0][0] for policy in (old, learner))
    said = np.asarray(response.logprobs)
    by_old, by_new = np.abs(said - before) < TOLERANCE, np.abs(said - after) < TOLERANCE
    turned = int(np.argmin(by_old))  # the first token that is not the old weights'
    assert 5 <= turned <= 9, (said, before, after)
    assert by_new[turned:].all(), (said, before, after)
    again = engine.respond([PROMPT], temperature=1.0, max_tokens=12, seeds=[4])[0]
    row = [*PROMPT, *again.ids]
    [[fresh]] = learner.score([row], [[(len(PROMPT), len(row))]])
    assert np.abs(np.asarray(again.logprobs) - fresh).max() < TOLERANCE


def test_links_are_what_vllm_makes_its_ends_from() -> None:
    """NCCL: the learner and all engines' GPUs; IPC: one GPU that both have. The worker's side takes what it is told."""
    from vllm.distributed.weight_transfer.nccl_common import NCCLWeightTransferInitInfo, worker_init_payload

    nccl, ipc = Link("nccl", "10.0.0.1", 1234, 5).info(), Link("ipc", "", 0, 1).info()
    assert (nccl.backend, nccl.world_size, nccl.is_sender, ipc.backend, ipc.is_sender) == ("nccl", 6, True, "ipc", True)
    told = worker_init_payload(
        NCCLWeightTransferInitInfo(master_address="10.0.0.1", master_port=1234, rank_offset=1, world_size=6)
    )
    assert told["rank_offset"] == 1  # which a board's client moves on for every engine
