"""README and docs: console sessions run as they are printed, and the site has no link that leads nowhere."""

import doctest
import os
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from io import StringIO
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from rich.console import Console

from reluformer.demo import operator

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted(ROOT.glob("docs/*.md"))]
SESSIONS = [page for page in PAGES if "```pycon" in page.read_text(encoding="utf-8")]


@pytest.mark.parametrize("page", SESSIONS, ids=lambda page: page.stem)
def test_examples(page: Path) -> None:
    failed, tried = doctest.testfile(str(page), module_relative=False)
    assert tried == page.read_text(encoding="utf-8").count("\n>>> ")
    assert failed == 0


def test_the_start_page_shows_what_the_demo_prints() -> None:
    screen = StringIO()
    operator._one_row(Console(file=screen, width=80))
    printed = "\n".join(line.rstrip() for line in screen.getvalue().strip().splitlines())
    assert f"```\n{printed}\n```" in (ROOT / "docs/index.md").read_text(encoding="utf-8")


class Targets(HTMLParser):
    """What a page of the site refers to: links, and whatever a browser loads for it."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.anchors: set[str] = set()
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.anchors.add(found.get("id") or "")
        (self.links if tag == "a" else self.loaded).extend(found[key] or "" for key in ("href", "src") if key in found)


def build(folder: Path, site: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(site)]
    quiet = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run(command, cwd=folder, env=quiet, capture_output=True, text=True, timeout=120)


def test_every_page_of_the_site_is_whole_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    built = build(ROOT, tmp_path)
    assert built.returncode == 0, built.stderr
    pages = {page: Targets(page) for page in tmp_path.rglob("*.html") if page.name != "404.html"}
    assert {page.stem for page in PAGES} <= {page.stem for page in pages}
    for page, targets in pages.items():
        for target in [*targets.links, *targets.loaded]:
            address = urlsplit(target)
            if address.scheme or address.netloc:
                assert target in targets.links, f"{page}: loads {target}"
                continue
            file = (page.parent / unquote(address.path)).resolve() if address.path else page
            assert file.is_file(), f"{page}: {target}"
            if file in pages and address.fragment:
                assert unquote(address.fragment) in pages[file].anchors, f"{page}: {target}"


def test_a_link_that_leads_nowhere_fails_the_build(tmp_path: Path) -> None:
    shutil.copy(ROOT / "mkdocs.yml", tmp_path)
    shutil.copytree(ROOT / "docs", tmp_path / "docs")  # without what they link to
    built = build(tmp_path, tmp_path / "site")
    assert built.returncode == 1
    assert "'docs/kernels.md' contains a link '../benchmarks/results/attention-h200.csv'" in built.stderr
