"""What is compared: settings (an environment with its models) and arms (a method with overrides)."""

from dataclasses import dataclass

BACKLOG = 128  # turns: two batches, for the arms with admission control
SMALL_BACKLOG = 64  # turns: one batch
FIRST_SEED = 100  # of all results; smaller ones were looked at before the preregistration was written


@dataclass(frozen=True)
class Setting:
    """A folder of configs/, and how an update of it usually takes, in seconds of one core."""

    name: str
    title: str
    environment: str  # the paper's word for it
    seconds_per_update: float


@dataclass(frozen=True)
class Arm:
    """A file of the setting and overrides. `load` is the share of the setting's own rollouts in flight."""

    name: str
    file: str
    overrides: tuple[str, ...] = ()
    load: float = 1.0


SETTINGS = {
    setting.name: setting
    for setting in (
        Setting("default", "ALFWorld, small homes", "alfworld", 6.0),
        Setting("webshop-small", "WebShop, small shop", "webshop", 9.0),
        Setting("scienceworld-short", "ScienceWorld, short tasks", "scienceworld", 16.0),
    )
}

MAIN = (
    "vanilla",
    "gate-only",
    "tcod-f2b",
    "turnopd",
    "top-b",
    "divopd-focus",
    "divopd-base",
    "divopd",
    "divopd-r",
    "divopd-adaptive",
)
CORE = ("vanilla", "gate-only", "divopd-base", "divopd")  # the preregistered ones; all that other settings have
CONFIRMING_SEEDS, OTHER_SEEDS = 32, 8  # of CORE in the default setting, and of everything else
LOADS = {"low": 1 / 8, "medium": 3 / 8}  # 2 and 6 of the paper's 16 rollouts; high is the setting's own load
READERS = ("vanilla", "divopd-base")
CAPS = (3, 4, 5, 6)
UNCAPPED = "divopd, no cap"  # only its own use of experience is told
RATES = ("2e-4", "5e-4")  # learning rates beside the chosen one
WHOLE_PROMPTS = "prompts.max_prompt_tokens=1024"  # none is cut in the default setting, so that no row is dead
LONGER = ("learner.updates=48", "evaluation.every=2")

ARMS = {
    arm.name: arm
    for arm in (
        *(Arm(method, method) for method in MAIN),
        Arm("vanilla-wide", "vanilla", ("method=vanilla-wide",)),
        Arm("divopd-base, no cap", "divopd-base", ("composer.cap=null",)),
        Arm(UNCAPPED, "divopd", ("composer.cap=null",)),
        *(Arm(f"divopd, k={cap}", "divopd", (f"composer.cap={cap}",)) for cap in CAPS),
        Arm("vanilla, staleness 4", "vanilla", ("composer.max_staleness=4",)),
        *(Arm(f"{reader}, {load} load", reader, load=share) for load, share in LOADS.items() for reader in READERS),
        *(Arm(f"{reader}, admission", reader, (f"explorer.max_backlog={BACKLOG}",)) for reader in READERS),
        *(Arm(f"{arm}, lr {rate}", arm, (f"learner.lr={rate}",)) for rate in RATES for arm in CORE),
        *(Arm(f"{reader}, whole prompts", reader, (WHOLE_PROMPTS,)) for reader in READERS),
        *(Arm(f"{arm}, 48 updates", arm, LONGER) for arm in ("vanilla", "divopd")),
        Arm("vanilla, tight admission", "vanilla", (f"explorer.max_backlog={SMALL_BACKLOG}",)),
    )
}


def seeds_of(setting: str, arm: str, *, most: int | None = None) -> range:
    """The seeds of an arm's runs; `most`: the first so many, whatever the arm."""
    own = CONFIRMING_SEEDS if setting == "default" and arm in CORE else OTHER_SEEDS
    return range(FIRST_SEED, FIRST_SEED + (most or own))
