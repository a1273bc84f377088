"""The documentation site: Sphinx over the markdown files of this folder. ``make docs`` builds it into build/docs."""

from __future__ import annotations

import lossguard

project = "lossguard"
author = "the lossguard authors"
copyright = "the lossguard authors"
release = version = lossguard.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc"]
source_suffix = {".md": "markdown"}
root_doc = "index"
exclude_patterns = ["ci/*", "**/.lossguard", "**/.pytest_cache", "**/model"]
nitpicky = False  # docstrings name things in plain literals, which refer to nothing

myst_heading_anchors = 4  # the anchors that GitHub gives to headings
myst_enable_extensions = ["fieldlist"]

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
autodoc_class_signature = "separated"

highlight_language = "none"  # blocks without a language are commands or what they print
html_theme = "furo"
html_title = f"lossguard {release}"
html_copy_source = False
html_show_sourcelink = False
