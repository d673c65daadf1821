"""Makes the links of the book work that lead to files outside of docs/. Checks that every link leads somewhere, and that every
file of the repository exists which a page names.

In: the folder that mdbook wrote, and the pages. Out: the same folder with a folder `files`, which has a copy of each such file
as text, and a list for each folder that a page links to. Contacts nothing: links with a scheme are not changed.

Called by dev/book, from the top of the repository. Prints each dead link and each missing file, and ends with 1 if there is one.
"""

import html
import os
import pathlib
import re
import shutil
import sys

HREF = re.compile(r'(href|src)="([^"]+)"')
ID = re.compile(r'\bid="([^"]+)"')
PATH = re.compile(r"`((?:src|tests|dev|docs|sql|docker|packaging|benches)/[A-Za-z0-9_./-]*)(?:::\w+)?`")

INLINE = {".svg", ".png"}
"""What a browser shows by itself. Anything else is copied under a name that ends with .txt, so that each server sends it as text."""

GENERATED = {"print.html", "404.html", "toc.html"}
"""Pages that mdbook makes of the others: their links are rewritten, and checked where they come from."""


def copy(source: pathlib.Path, book: pathlib.Path) -> pathlib.Path:
    """Copies a file or a folder of the repository; where its copy can be opened."""
    if source.is_dir():
        return copy_folder(source, book)
    name = source.name if source.suffix in INLINE else source.name + ".txt"
    target = book / "files" / source.parent / name
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)
    return target


def copy_folder(source: pathlib.Path, book: pathlib.Path) -> pathlib.Path:
    index = book / "files" / source / "index.html"
    index.parent.mkdir(parents=True, exist_ok=True)
    copies = [(path, copy(path, book)) for path in sorted(source.rglob("*")) if path.is_file()]
    lines = [
        f'<li><a href="{html.escape(os.path.relpath(target, index.parent))}">{html.escape(str(path.relative_to(source)))}</a></li>'
        for path, target in copies
    ]
    index.write_text(f"<!DOCTYPE html><meta charset=utf-8><title>{source}</title><h1>{source}</h1><ul>{''.join(lines)}</ul>\n")
    return index


def outside(path: str) -> pathlib.Path | None:
    """The file of the repository that a path leads to which leaves the book. mdbook takes .md for .html in it."""
    if not path.startswith("../"):
        return None
    source = pathlib.Path(path.removeprefix("../"))
    if source.suffix == ".html" and not source.exists():
        source = source.with_suffix(".md")
    return source if source.exists() else None


def rewrite(page: pathlib.Path, book: pathlib.Path) -> None:
    folder = page.parent.relative_to(book)

    def link(match: re.Match[str]) -> str:
        attribute, address = match.groups()
        path = html.unescape(address).partition("#")[0]
        if "://" in address or not path:
            return match.group()
        source = outside(os.path.normpath(folder / path))
        if source is None:
            return match.group()
        return f'{attribute}="{html.escape(os.path.relpath(copy(source, book), page.parent))}"'

    page.write_text(HREF.sub(link, page.read_text()))


def dead_links(book: pathlib.Path) -> list[str]:
    pages = sorted(page for page in book.rglob("*.html") if "files" not in page.relative_to(book).parts)
    anchors = {page: set(ID.findall(page.read_text())) for page in pages}
    dead = []
    for page in pages:
        if page.name in GENERATED:
            continue
        for _, address in HREF.findall(page.read_text()):
            path, _, anchor = html.unescape(address).partition("#")
            if re.match(r"[a-z]+:", address):
                continue
            target = pathlib.Path(os.path.normpath(page.parent / path)) if path else page
            if not target.exists() or (anchor and target in anchors and anchor not in anchors[target]):
                dead.append(f"{page.relative_to(book)}: {address}")
    return dead


def missing_files() -> list[str]:
    """Files and folders that a page names in backticks, and that do not exist. `NAME` is a placeholder."""
    pages = [pathlib.Path(name) for name in ("README.md", "CONTRIBUTING.md")] + sorted(pathlib.Path("docs").rglob("*.md"))
    missing = []
    for page in pages:
        prose = "".join(page.read_text().split("```")[::2])
        for named in PATH.findall(prose):
            exists = pathlib.Path(named).exists() or pathlib.Path(named + ".rs").exists()
            if not exists and "NAME" not in named:
                missing.append(f"{page}: {named}")
    return missing


def main() -> None:
    book = pathlib.Path(sys.argv[1])
    for page in sorted(book.rglob("*.html")):
        if "files" not in page.relative_to(book).parts:
            rewrite(page, book)
    wrong = [f"dead link: {link}" for link in dead_links(book)] + [f"no such file: {name}" for name in missing_files()]
    for line in wrong:
        print(line, file=sys.stderr)
    if wrong:
        sys.exit(1)


main()
