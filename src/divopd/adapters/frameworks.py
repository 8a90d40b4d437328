"""The frameworks that have an adapter: the package, the versions it fits, the class, whether it was run for real."""

from dataclasses import dataclass
from importlib import metadata

from divopd.errors import UnsupportedVersionError


@dataclass(frozen=True)
class Framework:
    """A package, and the adapter for it. `fits` is how versions begin that have the hook as it is used here."""

    package: str
    fits: str
    tried: str  # the version that the adapter was written for, and run with where `run` says so
    adapter: str
    run: bool  # with the real package; otherwise against a copy of the shape of its interface

    def installed(self) -> str | None:
        """The installed version; None if there is none (a clone on the path that was never installed has none, too)."""
        try:
            return metadata.version(self.package)
        except metadata.PackageNotFoundError:
            return None

    def misfit(self) -> str | None:
        """What to do about an installed version that does not fit, in a sentence; None if there is nothing to say."""
        version = self.installed()
        if version is None or f"{version}.".startswith(f"{self.fits}."):
            return None
        module = self.adapter.rpartition(".")[0]
        return (
            f"{self.package} {version} is installed; {module} fits {self.fits}: install {self.package} {self.tried}, "
            "or use divopd.pool, which needs no framework"
        )


FRAMEWORKS = {
    framework.package: framework
    for framework in (
        Framework("trinity-rft", "0.6", "0.6.0", "divopd.adapters.trinity.DivOPDSampleStrategy", run=True),
        Framework("TransferQueue", "0.1.11", "0.1.11", "divopd.adapters.transfer_queue.DivOPDSampler", run=True),
        Framework("verl", "0.9", "0.9.1", "divopd.adapters.verl.DivOPDReplayBuffer", run=True),
        Framework("trl", "1.16", "1.16.0", "divopd.adapters.trl.DivOPDRolloutWorker", run=True),
        Framework("miles", "0.1", "0.1.0", "divopd.adapters.miles.DivOPDDataBuffer", run=False),
        Framework("nemo-rl", "0.6", "0.6.0", "divopd.adapters.nemo_rl.DivOPDSampler", run=False),
    )
}


def require_fit(package: str) -> None:
    """Refuse a version of a framework that its adapter does not fit, before anything of it is used."""
    misfit = FRAMEWORKS[package].misfit()
    if misfit is not None:
        raise UnsupportedVersionError(misfit)


def unusable(package: str, error: ImportError) -> UnsupportedVersionError:
    """What an adapter says that cannot import its framework: not there, another version, or it misses a package."""
    framework = FRAMEWORKS[package]
    if framework.installed() is None:
        return UnsupportedVersionError(f"{package} is not installed; pip install {package}=={framework.tried}")
    return UnsupportedVersionError(
        framework.misfit() or f"{package} cannot be imported ({error}); install what it misses"
    )
