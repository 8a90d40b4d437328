"""scripts/check_links.py FOLDER: does every link of a built site lead somewhere, and does every page open offline?

Sphinx warns of what is wrong in the pages themselves. This looks at what came out: links of templates and of HTML
inside a page, anchors, pictures, scripts. A page may link to another site; it may load nothing from there.
"""

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOADED = {"script": "src", "img": "src", "link": "href", "iframe": "src", "source": "src"}
UNLOADED_RELS = {"index", "search", "next", "prev", "canonical"}  # a <link> that only says where something is


class Page(HTMLParser):
    """The anchors of a page, where it links to, and what it loads."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors, self.links, self.loads = {"", "top"}, set[str](), set[str]()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        told = dict(attrs)
        self.anchors |= {name for name in (told.get("id"), told.get("name") if tag == "a" else None) if name}
        if tag == "a" and (href := told.get("href")):
            self.links.add(href)
        loads = tag in LOADED and told.get("rel") not in UNLOADED_RELS
        if target := told.get(LOADED.get(tag, "")):
            (self.loads if loads else self.links).add(target)


def broken_links(site: Path) -> list[str]:
    """One line for each thing that is wrong, in the order of the pages."""
    pages = {path.resolve(): Page(path.read_text(encoding="utf-8")) for path in sorted(site.rglob("*.html"))}
    if not pages:
        return [f"{site}: no page in it; build the site first (make docs)"]
    found: list[str] = []
    for path, page in pages.items():
        name = path.relative_to(site.resolve())
        for target in sorted(page.links | page.loads):
            if wrong := _wrong(target, path, pages, loaded=target in page.loads):
                found.append(f"{name}: {target}: {wrong}")
    return found


def _wrong(target: str, at: Path, pages: dict[Path, Page], *, loaded: bool) -> str | None:
    parts = urlsplit(target)
    if parts.scheme or parts.netloc:
        return "loaded from another site, so the page does not open offline" if loaded and parts.netloc else None
    there = (at.parent / unquote(parts.path)).resolve() if parts.path else at
    if not there.is_file():
        return "there is no such file"
    anchor = unquote(parts.fragment)
    if there in pages and anchor not in pages[there].anchors:
        return f"there is no anchor {anchor!r} on that page"
    return None


def main() -> int:
    if len(sys.argv) != 2:
        print("usage: scripts/check_links.py FOLDER", file=sys.stderr)
        return 2
    found = broken_links(Path(sys.argv[1]))
    print("\n".join(found) or "links: all lead somewhere", file=sys.stderr if found else sys.stdout)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
