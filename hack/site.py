"""MkDocs hooks: what a page written for a Git host needs to be a page of the site.

- A link that leaves ``docs`` (a chart's README, an example) leads to a copy of that file below ``project/``. Copies of Markdown are pages.
- ``<picture>`` with a dark source becomes two images, of which the theme shows one.
- ``FOLDER/*`` in the navigation stands for the other pages of that folder, sorted by name.
- Pages with a Mermaid diagram load the copy of Mermaid that is part of this repository, and nothing is loaded from elsewhere.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
COPIES = "project"
"""Where files from outside ``docs`` are on the site, under their path in the repository."""
OUTSIDE = ("*.md", "charts/*/README.md", "images/README.md", "examples/README.md")
"""Pages that the navigation may name, whether a page links to them or not."""
MERMAID = "assets/vendor/mermaid.tiny.js"
_LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#)([^)#\s]+)(#[^)\s]*)?(?=\))")
_PICTURE = re.compile(
    r'<picture>\s*<source media="\(prefers-color-scheme: dark\)" srcset="([^"]+)">\s*<img src="([^"]+)" alt="([^"]*)">\s*</picture>'
)
_FENCE = re.compile(r"^( *)(```+|~~~+).*?^\1\2\s*$", re.MULTILINE | re.DOTALL)


# Copies


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Expands the navigation."""
    config.nav = _expanded(config.nav, Path(config.docs_dir))
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds what pages link to outside ``docs``, and what the navigation names there."""
    outside = [file for pattern in OUTSIDE for file in ROOT.glob(pattern) if repr(_copy(file)) in repr(config.nav)]
    open_ends = outside + [Path(file.abs_src_path) for file in files.documentation_pages() if file.abs_src_path]
    seen: set[Path] = set()
    while open_ends:
        page = open_ends.pop()
        if page in seen or not page.is_file():
            continue
        seen.add(page)
        if not page.is_relative_to(config.docs_dir):
            files.append(File.generated(config, _copy(page), abs_src_path=str(page)))
        if page.suffix == ".md":
            targets = (page.parent / link for link, _ in _LINK.findall(_prose(page.read_text(encoding="utf-8"))))
            open_ends += [target.resolve() for target in targets if not target.resolve().is_relative_to(config.docs_dir)]
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Translates links and pictures."""
    source = Path(page.file.abs_src_path or "").resolve()

    def link(match: re.Match[str]) -> str:
        target = (source.parent / match[1]).resolve()
        if not target.exists():
            return match[0]  # MkDocs says so
        uri = str(target.relative_to(config.docs_dir)) if target.is_relative_to(config.docs_dir) else _copy(target)
        return posixpath.relpath(uri, posixpath.dirname(page.file.src_uri) or ".") + (match[2] or "")

    pictures = _PICTURE.sub(r"![\3](\2#only-light)\n![\3](\1#only-dark)", markdown)
    return _outside_of_code(pictures, lambda text: _LINK.sub(link, text))


def on_post_page(output: str, *, page: Page, config: MkDocsConfig) -> str:
    """Adds Mermaid where it is needed."""
    if 'class="mermaid"' not in output:
        return output
    script = posixpath.relpath(MERMAID, posixpath.dirname(page.file.dest_uri) or ".")
    return output.replace("</head>", f'<script src="{script}"></script></head>', 1)


def _copy(file: Path) -> str:
    """Returns where a file from outside ``docs`` is on the site. A README has the name of its folder: it is no section's index."""
    path = file.relative_to(ROOT)
    if path.name != "README.md":
        return f"{COPIES}/{path}"
    return f"{COPIES}/{path.parent}.md" if path.parent.name else f"{COPIES}/overview.md"


# Text


def _outside_of_code(text: str, change: Callable[[str], str]) -> str:
    """Applies a change to everything but fenced code."""
    parts, end = [], 0
    for fence in _FENCE.finditer(text):
        parts += [change(text[end : fence.start()]), fence[0]]
        end = fence.end()
    return "".join([*parts, change(text[end:])])


def _prose(text: str) -> str:
    return _FENCE.sub("", text)


# Navigation


def _expanded(nav: Any, docs: Path) -> Any:
    """Returns the navigation with every ``FOLDER/*`` replaced."""
    if isinstance(nav, dict):
        return {title: _expanded(value, docs) for title, value in nav.items()}
    if not isinstance(nav, list):
        return nav
    found: list[Any] = []
    for entry in nav:
        if isinstance(entry, str) and entry.endswith("/*"):
            pages = sorted((docs / entry[:-2]).glob("*.md"))
            found += [str(page.relative_to(docs)) for page in pages if page.name != "README.md"]
        else:
            found.append(_expanded(entry, docs))
    return found
