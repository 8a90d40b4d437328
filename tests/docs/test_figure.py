"""The interactive figure of docs/concepts/allocation.md chooses as the package does, in a real browser."""

import re
from collections import Counter
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from blocks import blocks_of

from browser import ARGUMENTS, CHROMIUM
from divopd import Pool, Row

DOCS = Path(__file__).parents[2] / "docs"
PAGE = DOCS / "concepts" / "allocation.md"


@pytest.fixture(scope="module")
def queue() -> list[Any]:
    """The turns of the page's own Python block."""
    [block] = [one for one in blocks_of(PAGE) if one.language == "python"]
    names: dict[str, Any] = {}
    exec(block.text.partition("for method in")[0], names)
    return names["queue"]


def chosen(queue: list[Any], method: str, size: int, cap: int) -> list[str]:
    pool = Pool(method, batch_size=size, cap=cap, pool_multiplier=len(queue))  # all of it is in the pool
    pool.put(map(Row.of, queue))
    return [f"{one.rollout}{one.turn}" for one in pool.compose(update=0, allow_short=True).rows]


def test_the_text_without_javascript_is_true(queue: list[Any]) -> None:
    """The table that stands in the figure's place lists what the composers choose with B = 8 and k = 2."""
    rows = re.findall(r"<td>([\w-]+)</td><td>((?:[A-F]\d ?)+)</td><td>(\d)</td>", PAGE.read_text(encoding="utf-8"))
    assert [row[0] for row in rows] == ["vanilla", "gate-only", "divopd"]
    for method, keys, rollouts in rows:
        assert keys.split() == chosen(queue, method, 8, 2)
        assert int(rollouts) == len({key[0] for key in keys.split()})


@pytest.mark.browser
def test_the_figure_chooses_as_the_composers_do(queue: list[Any], tmp_path: Path) -> None:
    """Every method, batch size and cap that can be set; coverage draws at random, so there the slots are compared."""
    from playwright.sync_api import sync_playwright

    script = (DOCS / "_static" / "allocation.js").read_text(encoding="utf-8")
    html = tmp_path / "figure.html"
    html.write_text(f"<!doctype html><div id='allocation-figure'>text</div><script>{script}</script>", encoding="utf-8")
    complaints: list[str] = []
    with sync_playwright() as engine:
        browser = engine.chromium.launch(executable_path=CHROMIUM, args=list(ARGUMENTS))
        page = browser.new_page()
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(html.as_uri())
        settings = list(product(("vanilla", "gate-only", "divopd-base", "divopd"), range(1, 17), range(1, 9)))
        choose = "all => all.map(([m, b, k]) => allocationFigure.choose(m, b, k).map((one) => one.key))"
        for (method, size, cap), got in zip(settings, page.evaluate(choose, settings), strict=True):
            want = chosen(queue, method, size, cap)
            if method == "divopd-base":
                got, want = Counter(key[0] for key in got), Counter(key[0] for key in want)
            assert got == want, (method, size, cap)
        page.get_by_role("button", name="4 Focus").click()
        assert "divopd: 4 of 6 rollouts, 4.0 effective" in page.locator("#allocation-figure").inner_text()
        page.locator("#allocation-cap").fill("1")
        assert "divopd: 6 of 6 rollouts" in page.locator("#allocation-figure").inner_text()
        browser.close()
    assert complaints == []
