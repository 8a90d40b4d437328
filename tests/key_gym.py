"""Two Gymnasium environments that record what they are asked (recording_rooms.py): `key_gym:Quiet-v0` and `Loud-v0`."""

from typing import Any

import gymnasium

from recording_rooms import StuckRoom


class Rooms(gymnasium.Env[str, str]):
    """A room whose tasks are seeds; `name` tells which of the two it is."""

    observation_space = gymnasium.spaces.Text(100)
    action_space = gymnasium.spaces.Text(100)

    def __init__(self, name: str) -> None:
        self.name, self.room = name, StuckRoom()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        seen = self.room.reset(f"{self.name}-{seed}")
        return seen.text, {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        return self.room.step(action).text, 0.0, False, False, {"valid": False}


for name in ("Quiet", "Loud"):
    gymnasium.register(f"{name}-v0", entry_point=f"{__name__}:Rooms", kwargs={"name": name})
