"""`divopd doctor`: what is installed, what is missing, and the command that gets it."""

import argparse
import json
import os
import platform
import re
import sys
from dataclasses import asdict, dataclass
from importlib import metadata
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

from divopd.errors import DivopdError, InputError, MissingExtraError, how_to_install

HELP = "Say what is installed, what is missing and how to get it. Exit code 0 when the core works."
EXAMPLE = "divopd doctor"

REQUIREMENT = re.compile(r"(?P<name>[\w.-]+)(?P<versions>[^;]*)(?:;.*extra == ['\"](?P<extra>[\w-]+)['\"])?")
DATA_FOLDERS = {
    "DIVOPD_DATA": "the official games of ALFWorld (alfworld/) and products of WebShop (webshop/)",
    "ALFWORLD_DATA": "the official games of ALFWorld, as alfworld-download writes them",
}


@dataclass(frozen=True)
class Check:
    """One thing that was looked for. `found` is None if it is missing; `install` says how to get it then."""

    part: str
    found: str | None
    use: str
    install: str = ""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="one JSON object")


def run(args: argparse.Namespace) -> int:
    core = check_core()
    checks = [core, *check_packages(), check_devices(), check_java(), *check_environments(), *check_data()]
    checks += check_frameworks()
    machine = describe_machine()
    if args.json:
        print(json.dumps({"core_works": core.found is not None, **machine, "checks": [asdict(c) for c in checks]}))
    else:
        _print(checks, machine)
    return 0 if core.found is not None else 1


def check_core() -> Check:
    """Compose a batch and open a store: what everything else stands on."""
    use = "everything"
    try:
        from divopd.pool import Pool, Row
        from divopd.store import Store
        from divopd.synth import PRESETS, synthesize

        turns = list(islice(synthesize(PRESETS["alfworld"], updates=3, seed=0), 64))  # the first ones come at update 1
        pool = Pool("divopd", batch_size=16)
        pool.put(map(Row.of, turns))
        pool.compose(update=2)
        with TemporaryDirectory() as folder:
            Store.create(Path(folder) / "store.db").close()
    except (ImportError, OSError, DivopdError) as error:
        return Check("core", None, use, f"reinstall divopd: {type(error).__name__}: {error}")
    return Check("core", metadata.version("divopd"), use)


def check_packages() -> list[Check]:
    """Every package that divopd's own metadata names; those of `dev` are for its developers."""
    checks = []
    for requirement in metadata.requires("divopd") or []:
        match = REQUIREMENT.match(requirement)
        assert match is not None, requirement
        extra = match["extra"]
        if extra == "dev":
            continue
        found = _version(match["name"])
        install = how_to_install(extra) if extra else "pip install --force-reinstall . in the clone of divopd"
        checks.append(Check(match["name"], found, f"extra {extra}" if extra else "core", "" if found else install))
    return checks


def check_devices() -> Check:
    """The GPUs that torch can use. Importing torch shows at the same time that it can be imported."""
    try:
        import torch

        names = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    except ModuleNotFoundError:
        return Check("GPU", None, "larger models", str(MissingExtraError("torch", "train")))
    except (ImportError, OSError, RuntimeError) as error:
        return Check("GPU", None, "larger models", f"torch cannot be used: {str(error).splitlines()[0]}")
    return Check("GPU", ", ".join(names) or None, "larger models", "" if names else "the embedded models need none")


def check_java() -> Check:
    from divopd.environments.scienceworld.jvm import find_java

    try:
        return Check("java", find_java(), "environment scienceworld")
    except InputError as error:
        return Check("java", None, "environment scienceworld", str(error))


def check_environments() -> list[Check]:
    """Whether each environment of the table could start."""
    from divopd.environments import ENVIRONMENTS, missing_parts

    checks = []
    for name, entry in ENVIRONMENTS.items():
        missing = missing_parts(name)
        install = f"missing {', '.join(missing)}: {entry.install}" if missing else ""
        checks.append(Check(f"environment {name}", None if missing else "ready", entry.summary, install))
    return checks


def check_data() -> list[Check]:
    """Folders that the user names in environment variables."""
    checks = []
    for variable, what in DATA_FOLDERS.items():
        folder = os.environ.get(variable)
        there = folder is not None and Path(folder).is_dir()
        lacking = f"set it to a folder with {what}" if folder is None else f"{folder} is no folder; expected {what}"
        checks.append(Check(variable, folder if there else None, "official data", "" if there else lacking))
    return checks


def check_frameworks() -> list[Check]:
    """Other training frameworks that are installed, each with the adapter that fits it, or why it does not."""
    from divopd.adapters.frameworks import FRAMEWORKS

    checks = []
    for framework in FRAMEWORKS.values():
        version, misfit = framework.installed(), framework.misfit()
        if version is not None:
            use = framework.adapter if framework.run else f"{framework.adapter} (not run with the real package)"
            found = None if misfit else version
            checks.append(Check(f"framework {framework.package}", found, use, misfit or ""))
    names = ", ".join(FRAMEWORKS)
    none = Check("frameworks", None, "divopd inside another one", f"none of {names} is here; divopd needs none of them")
    return checks or [none]


def describe_machine() -> dict[str, str | int | None]:
    """Python, system, cores, free memory and free disk here, in bytes."""
    from divopd.plan.machine import cores, free_disk, free_memory

    return {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cores": cores(),
        "free_memory_bytes": free_memory(),
        "free_disk_bytes": free_disk(Path.cwd()),
    }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _print(checks: list[Check], machine: dict[str, str | int | None]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    from divopd.plan.machine import in_bytes

    memory, disk = machine["free_memory_bytes"], machine["free_disk_bytes"]
    free = "unknown" if memory is None else in_bytes(int(memory))
    print(f"python {machine['python']} on {machine['system']}, {machine['cores']} cores, "
          f"{free} of memory and {in_bytes(int(disk or 0))} of disk free")  # fmt: skip
    table = Table(box=box.SIMPLE_HEAD)
    for heading in ("part", "found", "for"):
        table.add_column(heading, overflow="fold")
    for check in checks:
        table.add_row(check.part, check.found or "[red]missing[/red]", check.use)
    console = Console(file=sys.stdout)
    console.print(table)
    missing = [check for check in checks if check.found is None]
    for install in dict.fromkeys(check.install for check in missing):
        parts = ", ".join(check.part for check in missing if check.install == install)
        console.print(f"{parts}: {install}", markup=False, highlight=False, soft_wrap=True)
    verdict = "The core works." if checks[0].found else "The core does not work."
    console.print(f"{verdict} Missing: {len(missing)} of {len(checks)} parts.", highlight=False)
