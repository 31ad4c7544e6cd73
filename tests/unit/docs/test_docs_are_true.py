"""What the hand-written documentation says is so: links, files, commands, names, metrics, releases, and the object in the README."""

from __future__ import annotations

import importlib.util
import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from dflash_controller.api import names
from dflash_controller.api.parse import parse_spec
from dflash_controller.api.status import Status
from dflash_controller.api.structural import structural
from dflash_controller.api.types import Spec
from dflash_controller.cli.program import root, run
from dflash_controller.engines.releases import TABLE
from dflash_controller.engines.resolved import OperatorDefaults
from dflash_controller.engines.sglang.admin import KEY_VARIABLE
from dflash_controller.model.fetch_progress import LIMIT_VARIABLE
from dflash_controller.model.snapshot import Key
from dflash_controller.runtime.metrics import Metrics, StatusMetrics
from dflash_controller.runtime.settings import PREFIX, Settings
from testbed.simulator.faults import Faults

ROOT = Path(__file__).parents[3]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("charts/*/README.md"), ROOT / ".ci" / "run"])
every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


def text_of(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


@every_page
def test_links_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8"))
    assert [link for link in links if not (page.parent / link).exists()] == []


@every_page
def test_make_targets_exist(page: Path) -> None:
    targets = set(re.findall(r"^([a-z0-9-]+):", text_of("Makefile"), re.MULTILINE))
    named = set(re.findall(r"(?:^|`)make ([a-z0-9-]+)", page.read_text(encoding="utf-8"), re.MULTILINE))
    assert named - targets == set()


@every_page
def test_modules_and_files_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    modules = set(re.findall(r"python -m ((?:testbed|benchmarks|dflash_controller)[a-z_.]*)", text))
    assert [name for name in sorted(modules) if importlib.util.find_spec(name) is None] == []
    text = re.sub(r"\]\([^)]*\)", "]", text)  # links have a test of their own, and are relative to their page
    files = set(re.findall(r"(?<![\w/.-])((?:dflash_controller|testbed|tests|charts|examples|images|benchmarks)/[\w./-]*[\w/])", text))
    assert [name for name in sorted(files) if not (ROOT / name).exists()] == []


def test_every_metric_of_the_operator_is_documented_and_no_other() -> None:
    metrics = Metrics()
    metrics.watch_queue(lambda: 0.0, lambda: 0.0)
    metrics.show(Key("a", "b"), StatusMetrics("Held", {"r": "stable"}, [{"metric": "speed", "verdict": "Failed", "limit": 5.0}]))
    page = metrics.page().decode()
    exist = set(re.findall(r"^# TYPE (dflash_\w+) ", page, re.MULTILINE))
    named = set(re.findall(r"^\| `(dflash_\w+)", text_of("docs/reference/operator.md"), re.MULTILINE))
    assert named == exist


def test_the_rights_are_those_of_the_chart() -> None:
    rules = re.findall(r"resources: \[(.+)\]\n +verbs: \[(.+)\]", text_of("charts/dflash-operator/templates/rbac.yaml"))
    granted = {(name, verbs) for names, verbs in rules for name in names.split(", ")}
    rights = text_of("docs/reference/operator.md").partition("\n## Rights\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| ([a-z/, ]+)(?: \(.+\))? \| ([a-z, ]+) \| ", rights, re.MULTILINE)
    assert {(name, verbs) for names, verbs in rows for name in names.split(", ")} == granted


def test_the_supported_releases_are_those_of_the_code() -> None:
    defaults = OperatorDefaults().versions
    text = text_of("docs/reference/engines.md")
    for name, releases in TABLE.items():
        [row] = re.findall(rf"^\| {releases.engine} \| (.+) \|$", text, re.MULTILINE)[:1]
        floor, _, tested, default = row.split(" | ")
        assert (floor, tested, default) == (releases.floor, ", ".join(releases.tested), defaults[name])


def test_every_fault_of_the_simulator_is_documented() -> None:
    text = text_of("docs/reference/testbed.md")
    assert [name for name in Faults().to_json() if f"`{name}`" not in text] == []


def test_the_object_in_the_readme_is_valid() -> None:
    [block] = re.findall(r"```yaml\n(.*?)```", text_of("README.md"), re.DOTALL)
    assert isinstance(parse_spec(yaml.safe_load(block)), Spec)


def test_every_folder_of_the_layout_exists() -> None:
    [layout] = re.findall(r"## The repository\n\n```\n(.*?)```", text_of("docs/explanation/architecture.md"), re.DOTALL)
    named = [name for line in layout.splitlines() for name in re.findall(r"^(?:\S+/ ?)+", line)]
    directories = [name for group in named for name in group.split()]
    assert len(directories) >= 10
    assert [name for name in directories if not (ROOT / name).is_dir()] == []


def test_the_index_lists_every_page() -> None:
    index = ROOT / "docs" / "README.md"
    listed = {(index.parent / link).resolve() for link in re.findall(r"\]\(([^)#:]+)\)", index.read_text(encoding="utf-8"))}
    pages = {
        page for page in (ROOT / "docs").rglob("*.md") if page != index and (page.parent.name != "runbooks" or page.name == "README.md")
    }
    assert len(pages) >= 15
    assert pages - listed == set()


def anchors(page: Path) -> set[str]:
    """As GitHub makes them of headings: lower case, punctuation gone, spaces become dashes."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@every_page
def test_links_into_a_page_name_one_of_its_headings(page: Path) -> None:
    links = re.findall(r"\]\(([^)#:]*)#([^)]+)\)", page.read_text(encoding="utf-8"))
    assert [f"{file}#{anchor}" for file, anchor in links if anchor not in anchors(page.parent / file if file else page)] == []


OF_OTHER_KINDS = {"status.podIP", "status.allocatable.nvidia"}
"""Fields of pods and nodes that commands of a page print."""


def fields(node: Mapping[str, Any], path: str) -> Iterator[str]:
    yield path
    inner = node.get("items", node)
    for name, child in inner.get("properties", {}).items():
        yield from fields(child, f"{path}.{name}")


@pytest.fixture(scope="module")
def all_fields() -> frozenset[str]:
    return frozenset({*fields(structural(Spec), "spec"), *fields(structural(Status), "status")})


@every_page
def test_fields_named_by_their_path_exist(page: Path, all_fields: frozenset[str]) -> None:
    text = re.sub("<!-- generated.*?<!-- end -->", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    named = set(re.findall(r"`((?:spec|status)\.[\w.]+)(?:`|:)", text)) | set(re.findall(r"\{\.(status\.[\w.]+)", text))
    assert named - all_fields - OF_OTHER_KINDS == set()


@every_page
def test_annotations_exist(page: Path) -> None:
    exist = {value for name, value in vars(names).items() if name.startswith(("ANNOTATION_", "LABEL_"))}
    exist |= {f"{names.GROUP}/{names.VERSION}"}
    text = page.read_text(encoding="utf-8").replace("serving\\.dflash\\.io", names.GROUP)
    assert set(re.findall(rf"(?<!dflashdeployment\.){names.GROUP}/[\w-]*\w", text)) - exist == set()


@every_page
def test_settings_exist(page: Path) -> None:
    exist = {f"{PREFIX}{name.upper()}" for name in Settings.model_fields} | {KEY_VARIABLE, LIMIT_VARIABLE}
    named = set(re.findall(rf"`({PREFIX}[A-Z_]*[A-Z])`", page.read_text(encoding="utf-8")))
    assert {name for name in named - exist if not name.startswith(("DFLASH_TESTBED_", "DFLASH_SIM_"))} == set()


def test_commands_of_the_readme_print_what_it_shows(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(ROOT)
    blocks = re.findall(r"```console\n\$ kubectl dflash (.*?)\n(.*?)```", text_of("README.md"), re.DOTALL)
    assert blocks
    for command, output in blocks:
        run(command.split())
        assert capsys.readouterr().out == output


def test_commands_that_pages_name_exist() -> None:
    pages = [page for page in PAGES if page.suffix == ".md"]
    named = {
        tuple(words.split())
        for page in pages
        for words in re.findall(r"(?:^|`)(?:\$ )?kubectl dflash((?: [a-z]+)+)", page.read_text(encoding="utf-8"), re.MULTILINE)
    }
    assert len(named) >= 3
    for words in named:
        found: click.Command | None = root
        for word in words:
            if not isinstance(found, click.Group):
                break
            found = found.get_command(click.Context(found), word)
            assert found is not None, words


def commands(page: Path) -> Iterator[str]:
    """What follows ``kubectl dflash`` on the lines of shell blocks, without pipes, redirections and comments."""
    for block in re.findall(r"^```(?:sh|bash|console)\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL):
        for line in re.findall(r"^(?:\$ )?kubectl dflash (.+)$", block.replace("\\\n", " "), re.MULTILINE):
            yield re.split(r" (?:#|\||\d?>)", line)[0]


@every_page
def test_commands_in_blocks_can_be_parsed(page: Path) -> None:
    for line in commands(page):
        command: click.Command = root
        words = shlex.split(line)
        while isinstance(command, click.Group) and words != ["--help"]:
            name, found, words = command.resolve_command(click.Context(command), words)
            assert found is not None, name
            command = found
        try:
            command.make_context(line, words, resilient_parsing=words == ["--help"])
        except click.UsageError as error:
            pytest.fail(f"kubectl dflash {line}: {error.format_message()}")


def test_runbooks_name_the_plugin() -> None:
    told = {page.stem for page in PAGES if page.parent.name == "runbooks" and any(commands(page))}
    assert told >= {"rollout-rolled-back", "rollout-held", "rollout-stuck", "stalled", "acceptance-dropped", "tuner-held", "operator-down"}
