"""docs/reference/api.md: signatures and docstrings of what other code may use."""

from reference_source import FieldText, Module, has_module, module
from reference_text import code, flat, page, prose, table

PUBLIC = (  # module, its names (none: all that is public there), what it is for
    ("api", (), "Everything in one place."),
    ("", (), "The composer in your own framework: numpy and nothing else."),
    ("pool", ("Batch",), "What a pool gives."),
    ("rows", ("Measured",), "What a pool is told of a turn."),
    ("recorder", ("Composed", "read_batches", "journal_recorded"), "What a pool recorded, as data and as a run."),
    ("observer", ("Observer",), "A framework's own sampler, watched."),
    ("composers.composer", ("Composer", "Settings", "Decision", "Candidate"), "What composers take and give."),
    ("turns", ("read_turns", "write_turns", "turn_to_json", "turn_from_json", "group_into_rollouts"), "Recordings."),
    ("validity", ("why_invalid", "disagreement", "valid_mask"), "The gate, and how much two models disagree."),
    ("replay", (), "Any composer over a recording."),
    ("metrics", (), "Figures of batches, of runs and of their use of experience."),
    ("environments.environment", (), "What an environment can do."),
    ("environments.gym", ("GymEnvironment",), "A Gymnasium environment as one of ours."),
    ("environments.openenv", ("OpenEnvEnvironment",), "An OpenEnv server as an environment."),
    ("config.loading", ("load_config",), "The configuration of a run."),
    ("store.reader", ("StoreReader",), "A run's store, read only: turns, fates, batches, records."),
    ("records", ("Observer",), "Who hears of a run as it goes on. The records themselves: [metrics](metrics.md)."),
    ("errors", (), "Every error that a user can meet."),
)  # fmt: skip


def api_page() -> str:
    """One heading a module, one a name."""
    parts = [
        "# The Python API",
        "What other code may import. Names that are not here may change without notice. The package is typed. "
        "Types and defaults are shown as the source has them.",
    ]
    for name, wanted, purpose in PUBLIC:
        if name and not has_module(name):
            continue
        source = module(name)
        homes = source.exported() if not name else {}
        parts += [f"## {f'divopd.{name}' if name else 'divopd'}", purpose]
        parts += [_described(one, module(homes.get(one, name))) for one in wanted or homes or source.public()]
    return page(*parts)


def _described(name: str, source: Module) -> str:
    """A heading, how it is called, its docstring; of a class also its fields and methods."""
    if source.find(name) is None:
        return page(f"### {name}", "A table by name; `divopd methods` prints it.").rstrip()
    parts = [f"### {name}", code(source.signature(name)), prose(source.docstring_of(name))]
    if fields := source.fields(name):
        parts.append(_fields(fields))
    told = [f"- `{signature}`" + (f": {flat(text)}" if text else "") for signature, text in source.methods(name)]
    return page(*parts, "\n".join(told)).rstrip()


def _fields(fields: list[FieldText]) -> str:
    """With a column for meanings only where one is told."""
    told = any(one.meaning for one in fields)
    rows = [
        [f"`{one.name}`", f"`{one.kind}`", f"`{one.default}`" if one.default else "–", one.meaning] for one in fields
    ]
    head = ["field", "type", "default", "meaning"]
    return table(head, rows) if told else table(head[:3], [row[:3] for row in rows])
