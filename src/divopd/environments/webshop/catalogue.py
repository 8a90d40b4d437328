"""The products of a WebShop: read from the official files, or from JSON lines.

Accepted as `data`:
- a folder with the official files: `items_shuffle_1000.json` + `items_ins_v2_1000.json` (small set, taken first), or
  `items_shuffle.json` + `items_ins_v2.json` (the full set), and `items_human_ins.json` for human goals;
- one of those `items_shuffle*.json` files, which says small or full;
- a `.jsonl` or `.jsonl.xz` file with one product a line, or a folder that holds one.

Product text is untrusted: control characters (terminal escapes among them) are dropped while reading.
"""

import json
import lzma
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from divopd.errors import InputError

PRICE_OF_UNPRICED = 100.0  # what the original charges for a product without a price
LONGEST_ID = 10  # longer ids are damaged lines of the official file; the original skips them too

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]+")
_PRODUCT_FILES = ("items_shuffle_1000.json", "items_shuffle.json")


@dataclass(frozen=True, slots=True)
class HumanInstruction:
    """What a person asked for, written by a person."""

    text: str
    attributes: tuple[str, ...]
    options: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Product:
    """One product as the shop knows it; pages show only a part of it (never `attributes` or `query`)."""

    id: str
    title: str
    description: str
    bullets: tuple[str, ...]
    pricing: tuple[float, ...]  # one price, or the lowest and the highest
    category: str
    query: str
    product_category: str
    options: Mapping[str, tuple[str, ...]]
    attributes: tuple[str, ...]
    instruction: str | None = None
    instruction_attributes: tuple[str, ...] = ()
    human: tuple[HumanInstruction, ...] = ()

    @property
    def price_tag(self) -> str:
        return " to ".join(f"${price}" for price in self.pricing)


def read_catalogue(data: Path) -> tuple[Product, ...]:
    """All products under `data` in file order, damaged and repeated ids left out as the original does."""
    path = _product_file(data)
    try:
        if path.name.endswith((".jsonl", ".jsonl.xz")):
            return _without_repeats(_from_json_line(line) for line in _lines(path))
        return _without_repeats(_official_products(path))
    except (OSError, lzma.LZMAError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise InputError(f"cannot read the WebShop products in {path}: {error}; get the file again") from error
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise InputError(
            f"{path} has a product of an unexpected form ({type(error).__name__}: {error}); "
            "expected WebShop's items_shuffle*.json, or JSON lines with asin, name, bullets, pricing, options, …"
        ) from error


def _product_file(data: Path) -> Path:
    if data.is_file():
        return data
    if not data.is_dir():
        raise InputError(
            f"no WebShop data at {data}; expected a folder with items_shuffle_1000.json or a .jsonl.xz file"
        )
    for name in _PRODUCT_FILES:
        if (data / name).is_file():
            return data / name
    lines = sorted([*data.glob("*.jsonl.xz"), *data.glob("*.jsonl")])
    if not lines:
        raise InputError(f"no products in {data}; expected one of {', '.join(_PRODUCT_FILES)}, or a .jsonl.xz file")
    return lines[0]


def _lines(path: Path) -> Iterator[str]:
    opener = lzma.open if path.suffix == ".xz" else open
    with opener(path, "rt", encoding="utf-8") as file:
        yield from (line for line in file if line.strip())


def _without_repeats(products: Iterable[Product]) -> tuple[Product, ...]:
    kept: dict[str, Product] = {}
    for product in products:
        if product.id != "nan" and len(product.id) <= LONGEST_ID:
            kept.setdefault(product.id, product)
    return tuple(kept.values())


def _from_json_line(line: str) -> Product:
    row = json.loads(line)
    return Product(
        id=_clean(row["asin"]),
        title=_clean(row["name"]),
        description=_clean(row["description"]),
        bullets=_texts(row["bullets"]),
        pricing=tuple(float(price) for price in row["pricing"][:2]) or (PRICE_OF_UNPRICED,),
        category=_clean(row["category"]),
        query=_clean(row["query"]).lower().strip(),
        product_category=_clean(row["product_category"]),
        options={_clean(name).lower(): _texts(map(str.lower, values)) for name, values in row["options"].items()},
        attributes=_texts(row["attributes"]),
        instruction=_clean(row["instruction"]) or None,
        instruction_attributes=_texts(row["instruction_attributes"]),
        human=_human(row["human"]),
    )


def _official_products(path: Path) -> Iterator[Product]:
    """Joins the product file with its attribute and instruction files, which lie beside it."""
    attributes_path = path.with_name(path.name.replace("items_shuffle", "items_ins_v2"))
    human_path = path.with_name("items_human_ins.json")
    if attributes_path == path or not attributes_path.is_file():
        raise InputError(f"{path.name} needs {attributes_path.name} beside it in {path.parent}; put both there")
    attributes = json.loads(attributes_path.read_text(encoding="utf-8"))
    human = json.loads(human_path.read_text(encoding="utf-8")) if human_path.is_file() else {}
    for row in json.loads(path.read_text(encoding="utf-8")):
        known = attributes.get(row["asin"], {})
        bullets = row["small_description"]
        yield Product(
            id=_clean(row["asin"]),
            title=_clean(row["name"]),
            description=_clean(row["full_description"]),
            bullets=_texts(bullets if isinstance(bullets, list) else [bullets]),
            pricing=_official_pricing(row.get("pricing")),
            category=_clean(row["category"]),
            query=_clean(row["query"]).lower().strip(),
            product_category=_clean(row["product_category"]),
            options=_official_options(row.get("customization_options") or {}),
            attributes=_texts(known.get("attributes")),
            instruction=_clean(known.get("instruction")) or None,
            instruction_attributes=_texts(known.get("instruction_attributes")),
            human=_human(human.get(row["asin"])),
        )


def _official_pricing(text: str | None) -> tuple[float, ...]:
    """`$1,019.99$27.00` is a lowest and a highest price; no text at all is the price of the unpriced."""
    numbers = [re.sub(r"[^\d.]", "", part) for part in (text or "").split("$")[1:]]
    return tuple(float(number) for number in numbers[:2]) or (PRICE_OF_UNPRICED,)


def _official_options(rows: dict[str, Any]) -> dict[str, tuple[str, ...]]:
    return {
        _clean(name).lower(): tuple(_clean(entry["value"]).strip().replace("/", " | ").lower() for entry in entries)
        for name, entries in rows.items()
        if entries is not None
    }


def _human(rows: list[dict[str, Any]] | None) -> tuple[HumanInstruction, ...]:
    return tuple(
        HumanInstruction(
            text=_clean(row["instruction"]),
            attributes=_texts(row["instruction_attributes"]),
            options=_texts(row["instruction_options"]),
        )
        for row in rows or ()
    )


def _texts(values: Iterable[str] | None) -> tuple[str, ...]:
    return tuple(_clean(value) for value in values or ())


def _clean(text: str | None) -> str:
    return _CONTROL.sub(" ", text or "")
