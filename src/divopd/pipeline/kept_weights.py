"""Which policy versions have their weights in the run's folder.

They are those that are evaluated; on the live clock the newest ones that explorers get; and, for audits, those from
which the last `audits.keep_last` updates started. All others are deleted as the run goes on.
"""

from collections.abc import Sequence

from divopd.config import Config
from divopd.evaluation import is_evaluated
from divopd.learner import Learner
from divopd.pipeline.rollouts import is_synced
from divopd.run.checkpoints import publish_weights
from divopd.run.durable_folder import delete_folder
from divopd.run.folder import RunFolder


def keep_weights(config: Config, run: RunFolder, version: int, learner: Learner, *, for_explorers: int = 0) -> None:
    """Write the weights that the learner holds, if anybody will need them, and delete those that nobody needs now."""
    read = for_explorers > 0 and is_synced(config, version)
    if (read or is_evaluated(config, version) or config.audits.keep_last) and not run.weights_of(version).exists():
        publish_weights(run.weights, version, learner.weights())
    for old in superseded(config, run.versions(), version=version, for_explorers=for_explorers):
        delete_folder(run.weights_of(old))


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
