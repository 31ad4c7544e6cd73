"""The documentation site builds without a warning, needs nothing from elsewhere, and a mistake in a page is an error."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs"


def build(config: Path, out: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--config-file", str(config), "--site-dir", str(out)]
    return subprocess.run(
        command, cwd=config.parent, env={**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(ROOT)}, capture_output=True, text=True
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("site")
    done = build(ROOT / "mkdocs.yml", out)
    assert done.returncode == 0, f"make site:\n{done.stdout}{done.stderr}"
    return out


def test_every_page_is_there_and_can_be_found(site: Path) -> None:
    pages = [page.relative_to(DOCS) for page in DOCS.rglob("*.md")]
    assert len(pages) > 40
    built = [page.with_name("index.html") if page.name == "README.md" else page.with_suffix(".html") for page in pages]
    assert [page for page in built if not (site / page).is_file()] == []
    found = {entry["location"].partition("#")[0] for entry in json.loads((site / "search" / "search_index.json").read_text())["docs"]}
    assert {str(page) for page in built} <= {location or "index.html" for location in found}


def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    text = {page.relative_to(site): page.read_text(encoding="utf-8") for page in site.rglob("*.html")}
    loaded = r'<(?:script|img|iframe|source)\b[^>]* src(?:set)?="?(?:https?:)?//[^">]*|<link\b[^>]* href="?(?:https?:)?//[^>]*'
    assert {page: found for page, content in text.items() if (found := re.findall(loaded, content))} == {}
    styles = "".join(style.read_text(encoding="utf-8") for style in site.rglob("*.css"))
    assert re.findall(r"(?:@import |url\()['\"]?(?:https?:)?//[^)]*", styles) == []


def test_pages_with_a_diagram_bring_what_draws_it(site: Path) -> None:
    drawn = [page for page in site.rglob("*.html") if 'class="mermaid"' in page.read_text(encoding="utf-8")]
    assert len(drawn) >= 2
    for page in drawn:
        [script] = re.findall(r'<script src="([^"]*mermaid[^"]*)">', page.read_text(encoding="utf-8"))
        assert (page.parent / script).is_file()


def test_both_schemes_have_their_figure(site: Path) -> None:
    page = (site / "explanation" / "dflash.html").read_text(encoding="utf-8")
    images = set(re.findall(r'<img [^>]*src="figures/([a-z]+)-(light|dark)\.svg#only-(light|dark)"', page))
    assert len(images) == 8
    assert all(drawn == shown for _, drawn, shown in images)
    assert "<picture>" not in page


def test_generated_tables_are_tables(site: Path) -> None:
    for page in DOCS.rglob("*.md"):
        if tables := page.read_text(encoding="utf-8").count("<!-- generated: "):
            html = (site / page.relative_to(DOCS).with_suffix(".html")).read_text(encoding="utf-8")
            assert html.count("<table>") >= tables, page
            assert "<p>| " not in html, page


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[gone](gone.md)", "gone.md"),
        ("[gone](other.md#nowhere)", "nowhere"),
        ("[gone](../elsewhere.yaml)", "elsewhere.yaml"),
        ("[right](other.md#there)", ""),
        ("```\n[code](gone.md)\n```", ""),
    ],
)
def test_a_wrong_link_is_an_error(tmp_path: Path, text: str, said: str) -> None:
    pages = tmp_path / "docs"
    pages.mkdir()
    (pages / "README.md").write_text(f"# Home\n\n{text}\n")
    (pages / "other.md").write_text("# Other\n\n## There\n")
    everything, _, _ = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:")
    nav = yaml.safe_dump({"nav": ["README.md", "other.md"]})
    (tmp_path / "mkdocs.yml").write_text(everything.replace("hack/site.py", str(ROOT / "hack" / "site.py")) + "\n" + nav)
    done = build(tmp_path / "mkdocs.yml", tmp_path / "out")
    assert (done.returncode != 0) == bool(said), done.stderr
    assert said in done.stderr


def test_a_page_outside_of_the_navigation_is_an_error(tmp_path: Path) -> None:
    pages = tmp_path / "docs"
    pages.mkdir()
    for name in ("README.md", "forgotten.md"):
        (pages / name).write_text("# A page\n")
    everything, _, _ = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:")
    (tmp_path / "mkdocs.yml").write_text(everything.replace("hack/site.py", str(ROOT / "hack" / "site.py")) + "\nnav: [README.md]\n")
    done = build(tmp_path / "mkdocs.yml", tmp_path / "out")
    assert done.returncode != 0
    assert "forgotten.md" in done.stderr
