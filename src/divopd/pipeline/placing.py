"""Places on a Ray cluster for the ranks of the learner, reserved for the whole run.

A rank that died is started again in its own place: no explorer that waits for a GPU can take it meanwhile. The first
machine is the one with the run's folder; ranks that follow one another are on one machine.
"""

import time
from collections.abc import Callable
from ipaddress import IPv4Address
from typing import Any

from divopd.config import Config
from divopd.errors import DivopdError, InputError, MissingExtraError

try:
    import ray
    from ray.util.placement_group import PlacementGroup, placement_group, placement_group_table, remove_placement_group
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
except ImportError:
    raise MissingExtraError("ray", "ray") from None

CPUS = 0.01  # of an actor: what it really takes is its threads' matter, and a whole one would keep others away
PLACEMENT_S = 300.0  # for Ray to find a place for at least one actor of each role
LOOK_S = 0.5


class LearnerPlaces:
    """A bundle of resources on each machine, with room for as many ranks as it gets."""

    def __init__(self, config: Config, *, here: str) -> None:
        self._config = config
        self._each = config.learner.ranks // config.learner.nodes
        self.gpus = config.gpus_of("learner")
        bundle = {"CPU": CPUS * self._each} | ({"GPU": self.gpus * self._each} if self.gpus else {})
        machines: list[dict[str, str]] = [{"ray.io/node-id": here}, *({} for _ in range(1, config.learner.nodes))]
        self._group: PlacementGroup = placement_group(
            [bundle] * config.learner.nodes, strategy="STRICT_SPREAD", bundle_label_selector=machines
        )

    def wait(self, check: Callable[[], None]) -> None:
        """Until Ray has reserved them; a DivopdError if the cluster has no such places."""
        began = time.monotonic()
        while not self._group.wait(LOOK_S):
            check()
            if time.monotonic() - began > PLACEMENT_S:
                raise DivopdError(
                    f"Ray found no places for the learner in {PLACEMENT_S:g} s; {self._config.learner.nodes} machines, "
                    f"this one among them, must have {self._each * self.gpus:g} free GPUs each, and the cluster has "
                    f"{ray.cluster_resources().get('GPU', 0):g} GPUs on {len(ray.nodes())} machines; add a machine, or "
                    "lower learner.ranks or learner.nodes of a new run; this one goes on with --resume"
                )
        self._refuse_unreachable()

    def of(self, rank: int) -> PlacementGroupSchedulingStrategy:
        """Where a rank is started, every time."""
        return PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=rank // self._each)

    def release(self) -> None:
        remove_placement_group(self._group)

    def _refuse_unreachable(self) -> None:
        """Ranks on several machines cannot meet at an address that each machine has for itself."""
        chosen: dict[str, Any] = placement_group_table(self._group)["bundles_to_node_id"]
        addresses = {node["NodeManagerAddress"] for node in ray.nodes() if node["NodeID"] in set(chosen.values())}
        address = self._config.learner.address
        if len(addresses) > 1 and IPv4Address(address).is_loopback:
            raise InputError(
                f"learner.address is {address}, and the ranks are on {len(addresses)} machines, each of which has that "
                "address for itself; expected the address of this machine on their network"
            )
