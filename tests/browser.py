"""A real headless browser for tests of pages; nothing but this machine can be reached from it.

Tests that open one are marked `browser`: conftest.py skips them before anything starts if there is none.
"""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
VIEWS = {
    "learning": "Learning",
    "training": "Training",
    "answers": "Answers",
    "cost": "Cost to a target",
    "batches": "Batches",
    "flow": "Flow of turns",
    "use": "Use of experience",
    "depth": "Disagreement by depth",
    "age": "Age of rows",
    "queue": "Queue pressure",
    "time": "Seconds by stage",
    "rollouts": "Rollouts",
    "diff": "Two runs",
}


@contextmanager
def opened(address: str, *, expected: str | None = None, **context: Any) -> Iterator[Any]:
    """A page at this address. Afterwards: nothing unexpected is on the console, and no dialog was opened."""
    from playwright.sync_api import Dialog, sync_playwright

    complaints: list[str] = []

    def refuse(dialog: Dialog) -> None:
        complaints.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    with sync_playwright() as engine:
        browser = engine.chromium.launch(executable_path=CHROMIUM, args=list(ARGUMENTS))
        settings = {"viewport": {"width": 1280, "height": 800}, "accept_downloads": True} | context
        page = browser.new_context(**settings).new_page()
        page.set_default_timeout(20_000)
        page.on("console", lambda message: complaints.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: complaints.append(f"error: {error}"))
        page.on("dialog", refuse)
        try:
            page.goto(address)
            settle(page)
            yield page
        finally:
            browser.close()
    unexpected = [complaint for complaint in complaints if expected is None or expected not in complaint]
    assert not unexpected, unexpected


def settle(page: Any) -> None:
    """Wait until the view that was asked for is drawn."""
    page.wait_for_selector("#content > *")
    page.wait_for_selector("main:not([aria-busy])")
    page.wait_for_timeout(60)  # figures are drawn when their width is known, a frame later


def open_view(page: Any, name: str) -> None:
    page.locator(f"nav a[data-key='nav/{name}']").click()
    page.wait_for_function("title => document.querySelector('h1').textContent === title", arg=VIEWS[name])
    settle(page)
