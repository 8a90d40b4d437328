"""Which policy versions have their weights in the run's folder.

They are those that are evaluated (with `weights.keep` the newest of them, and those whose evaluation is still to come);
on the live clock the newest ones that explorers get, if they get them from there; and, for audits, those from which the
last `audits.keep_last` updates started. All others are deleted as the run goes on.
"""

from collections.abc import Callable, Collection, Sequence

from divopd.config import Config
from divopd.evaluation import is_evaluated
from divopd.learner import Learner
from divopd.pipeline.rollouts import is_synced
from divopd.run.checkpoints import publish_weights
from divopd.run.durable_folder import delete_folder
from divopd.run.folder import RunFolder


def keep_weights(
    config: Config, run: RunFolder, version: int, learner: Learner, *, evaluated: Callable[[], Collection[int]]
) -> None:
    """Write the weights that the learner holds, if anybody will need them, and delete those that nobody needs now.

    `evaluated` tells which versions have been evaluated; it is asked only if some of their weights may go.
    """
    if is_lasting(config, version) and not run.weights_of(version).exists():
        publish_weights(run.weights, version, learner.weights())
    known = examined(config, evaluated)
    delete_needless(config, run, version=version, evaluated=known, for_explorers=0)


def is_lasting(config: Config, version: int) -> bool:
    """Whether anybody but explorers will want these weights: an evaluation, or an audit."""
    return is_evaluated(config, version) or config.audits.keep_last > 0


def examined(config: Config, evaluated: Callable[[], Collection[int]]) -> Collection[int]:
    """The versions that have been evaluated, as far as it matters for what stays on disk."""
    return () if config.weights.keep is None else evaluated()


def delete_needless(
    config: Config, run: RunFolder, *, version: int, evaluated: Collection[int], for_explorers: int
) -> None:
    """Delete the versions that nobody needs when the learner holds `version`."""
    known = run.versions()
    gone = superseded(config, known, version=version, for_explorers=for_explorers)
    if config.weights.keep is not None:
        gone += surplus(config, known, evaluated, version=version, for_explorers=for_explorers)
    for old in gone:
        delete_folder(run.weights_of(old))


def surplus(
    config: Config, known: Sequence[int], evaluated: Collection[int], *, version: int, for_explorers: int
) -> list[int]:
    """The versions that were evaluated and are not among the newest `weights.keep` of those, nor needed otherwise."""
    assert config.weights.keep is not None, "without a limit nothing is too much"
    examined = [one for one in known if is_evaluated(config, one) and one in evaluated]
    synced = [one for one in known if is_synced(config, one)]
    needed = synced[-for_explorers:] if for_explorers else []
    old = (one for one in examined[: -config.weights.keep] if one not in needed)
    return [one for one in old if one < version - config.audits.keep_last]


def superseded(config: Config, known: Sequence[int], *, version: int, for_explorers: int) -> list[int]:
    """The versions whose weights nobody needs when the learner holds `version`.

    The last updates that were made started from the versions before it, and the next one starts from it: so there is
    one version more than `audits.keep_last`, and a run that is stopped can be audited like one that has ended.
    """
    synced = [one for one in known if is_synced(config, one)]
    needed = set(synced[-for_explorers:] if for_explorers else [])
    return [
        one
        for one in known
        if one < version - config.audits.keep_last and one not in needed and not is_evaluated(config, one)
    ]
