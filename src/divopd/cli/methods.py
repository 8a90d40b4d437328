"""`divopd methods`: the table of composers."""

import argparse
import inspect
import json

from divopd.composers import EXPLORER_PARTS, METHODS, make_composer

HELP = "List the composers: what each one gates, how it orders, what it keeps."
EXAMPLE = "divopd methods"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="one JSON object a line")


def run(args: argparse.Namespace) -> int:
    rows = [_describe(name) for name in METHODS]
    if args.json:
        print("\n".join(json.dumps(row) for row in rows))
        return 0
    from rich.console import Console
    from rich.table import Table

    table = Table("method", "gate", "pool", "what it does", title="Composers (B = 64, c = 4)", title_justify="left")
    for row in rows:
        table.add_row(str(row["method"]), "yes" if row["gated"] else "no", str(row["pool"]), str(row["what"]))
    Console().print(table)
    return 0


def _describe(name: str) -> dict[str, str | bool | int]:
    composer = make_composer(name)
    what = (inspect.getdoc(type(composer)) or "").splitlines()[0].rstrip(".")
    extra = EXPLORER_PARTS.get(name)
    return {
        "method": name,
        "gated": composer.gated,
        "pool": composer.pool_size,
        "what": f"{what}; {extra}" if extra else what,
    }
