"""The site is laid out like the repository, so that one link works in both.

MkDocs knows the pages below ``docs/`` alone, but these link to measurements, recipes and sources, and some of those
back. Here every file goes by its path in the repository, and whatever a page links to joins the site, and what that
links to. MkDocs then checks all links: with ``--strict`` one that leads nowhere fails the build.
"""

import re
from pathlib import Path, PurePosixPath
from posixpath import normpath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
LINK = re.compile(r"\]\(<?([^)>#\s]+)")  # the target in [text](target#anchor) and ![text](<target>)
IMAGE = re.compile(r"!\[([^]]*)\]\(<?([^)>]+)>?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Rename the files of ``docs/`` and add what they link to."""
    ours = [file for file in files if file.src_dir == config.docs_dir and file.inclusion.is_included()]
    found, todo = set(), [f"docs/{file.src_uri}" for file in ours]
    while todo:
        path = todo.pop()
        if path not in found:
            found.add(path)
            todo.extend(linked(path))
    for file in ours:
        files.remove(file)
    for path in sorted(found):
        files.append(File(path, str(ROOT), config.site_dir, config.use_directory_urls, dest_uri=address(path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Say in Python's Markdown what a report of the study says in GitHub's, and which of its pictures were not kept."""
    folder = (ROOT / page.file.src_uri).parent
    if not folder.is_relative_to(ROOT / "results"):
        return markdown
    markdown = IMAGE.sub(lambda m: m[0] if (folder / m[2]).is_file() else f"{m[1]} *(picture not kept)*", markdown)
    markdown = markdown.replace("<details>", '<details markdown="1">')  # what is inside is Markdown too
    return re.sub("^ +(?=- )", lambda m: 2 * m[0], markdown, flags=re.MULTILINE)  # lists in lists, by four spaces


def linked(path: str) -> list[str]:
    """The files of the repository that a page links to."""
    if not path.endswith(".md"):
        return []
    targets = LINK.findall((ROOT / path).read_text(encoding="utf-8"))
    paths = [normpath(PurePosixPath(path).parent / target) for target in targets]
    return [other for other in paths if not other.startswith("../") and (ROOT / other).is_file()]


def address(path: str) -> str:
    """Where a file of the repository is on the site: ``docs/`` is its top, and text is what a browser shows."""
    place = PurePosixPath(path.removeprefix("docs/"))
    if place.suffix == ".md":
        return str(place.with_suffix(".html"))
    return str(place) if place.suffix in {".css", ".png", ".svg"} else f"{place}.txt"
