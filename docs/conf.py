"""How Sphinx makes the site of this folder: `make docs`. The pages are plain Markdown and are readable without it."""

from pathlib import Path
from typing import Any

from sphinx.addnodes import pending_xref

project = "DivOPD"
author = "the DivOPD implementation"
project_copyright = "Apache-2.0"
html_title = "DivOPD"

extensions = ["myst_parser"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build"]
nitpicky = True
smartquotes = False  # --option stays as it is typed

myst_heading_anchors = 4  # [a link](page.md#a-heading) works here and on a code host alike
myst_links_external_new_tab = False

html_theme = "furo"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sourcelink = False
html_show_sphinx = False
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#0b6e6e", "color-brand-content": "#0b6e6e"},
    "dark_css_variables": {"color-brand-primary": "#5fc9c3", "color-brand-content": "#5fc9c3"},
}


def _folders_as_text(app: Any, doctree: Any) -> None:
    """A link to a folder works on a code host; a site of pages has no folder to open, so here it is plain text."""
    page = Path(app.env.doc2path(app.env.docname))
    for node in list(doctree.findall(pending_xref)):
        if (page.parent / str(node.get("reftarget"))).is_dir():
            node.replace_self(node.children)


def setup(app: Any) -> None:
    app.connect("doctree-read", _folders_as_text)
