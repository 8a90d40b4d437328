"""Does a run fit on the machine that its configuration names? Each role against the memory of its GPUs, GPUs in all."""

from ipaddress import IPv4Address
from math import ceil

from divopd.config import Config
from divopd.plan.machine import in_bytes

Parts = dict[str, int]  # bytes by purpose


def misfits(config: Config, by_actor: dict[str, Parts], by_device: dict[str, Parts]) -> list[str]:
    """What is missing on the machine, a sentence each; nothing where the machine's size is not said."""
    found = [*_lacking_gpus(config)]
    if config.cluster:
        return [*found, *(sentence for role, parts in by_actor.items() for sentence in _too_large(config, role, parts))]
    return [*found, *_too_large_together(config, by_device)]


def room_of(config: Config, role: str) -> float | None:
    """Bytes of GPU that one actor of a role has; None where nobody says."""
    gpu, gpus = config.machine.gpu_memory_gb, config.gpus_of(role)
    return None if gpu is None or not gpus else gpus * gpu * 1e9


def memory_share(config: Config, role: str, parts: Parts) -> float:
    """The share of each of its GPUs that an engine asks for: what it needs, in whole hundredths.

    An engine that asks for more than that would take what another engine on the same GPU needs.
    """
    gpu = config.machine.gpu_memory_gb
    if gpu is None:
        return USUAL_SHARE
    gpus = max(1.0, config.gpus_of(role))
    return min(1.0, ceil(100 * sum(parts.values()) / (gpus * gpu * 1e9)) / 100)


USUAL_SHARE = 0.9  # of a GPU whose size nobody has said


def _lacking_gpus(config: Config) -> list[str]:
    machine, name = config.machine, named(config)
    if machine.gpus is None:
        return []
    there, sentences = machine.gpus * machine.nodes, []
    learner = config.learner.ranks // config.learner.nodes * config.gpus_of("learner")
    if config.cluster and config.all_gpus > there:
        sentences.append(f"GPUs: the run wants {config.gpu_plan}, and {name} has {there}; lower explorer.processes, "
                         "teacher.count or learner.ranks, or let roles share a GPU (gpus)")  # fmt: skip
    elif config.cluster and learner > machine.gpus:
        on = "one machine" if config.learner.nodes == 1 else f"{config.learner.nodes} machines"
        sentences.append(f"GPUs: the ranks of the learner are on {on} and want {learner:g} of each, and each of {name} "
                         f"has {machine.gpus}; lower learner.ranks, or raise learner.nodes")  # fmt: skip
    elif config.learner.nodes > machine.nodes:
        sentences.append(f"machines: the ranks of the learner are to be on {config.learner.nodes} (learner.nodes), and "
                         f"{name} has {machine.nodes}")  # fmt: skip
    elif config.learner.nodes > 1 and IPv4Address(config.learner.address).is_loopback:
        sentences.append(f"address: the ranks of the learner are on {config.learner.nodes} machines, each of which has "
                         f"{config.learner.address} for itself; set learner.address to the first one's on their "
                         "network")  # fmt: skip
    elif not config.cluster and not there and {config.student.device, config.teacher.device} != {"cpu"}:
        sentences.append(f"GPUs: a model is to be on cuda, and {name} has no GPU; name another machine")
    return sentences


def _too_large(config: Config, role: str, parts: Parts) -> list[str]:
    room, needed = room_of(config, role), sum(parts.values())
    if room is None or needed <= room:
        return []
    advice = {"learner": "raise learner.ranks, set learner.activations to recompute, or lower learner.max_tokens"}
    usual = f"lower explorer.rollouts_in_flight, or raise gpus.{role} and tensor_parallel"
    return [f"memory: each {role} needs about {in_bytes(needed)}, and its GPUs on {named(config)} have "
            f"{in_bytes(room)}; {advice.get(role, usual)}"]  # fmt: skip


def _too_large_together(config: Config, by_device: dict[str, Parts]) -> list[str]:
    machine, sentences = config.machine, []
    for device, parts in by_device.items():
        room = machine.memory_gb if device == "cpu" else machine.gpu_memory_gb
        needed = sum(parts.values())
        if room is not None and needed > room * 1e9:
            sentences.append(f"memory: the run needs about {in_bytes(needed)} on {device}, and {named(config)} has "
                             f"{in_bytes(room * 1e9)}; name a machine with more (--machine), or take a smaller student "
                             "and teacher")  # fmt: skip
    return sentences


def named(config: Config) -> str:
    """The machine, as messages call it."""
    return f"machine {config.machine.name}" if config.machine.name else "the machine"
