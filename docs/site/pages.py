"""Copies the pages of the repository, and their pictures, to a folder that the site is built of.

Links to folders, and to files that are no pages, lead to the repository's own site instead.
"""

import pathlib
import re
import shutil
import subprocess
import sys

REPOSITORY = "https://github.com/seed951563bd/distsync"
BADGE = re.compile(r"^\[!\[.*\n", re.MULTILINE)  # they are loaded from elsewhere
SHALLOW = re.compile(r"^ {1,3}([-*]|\d+\.) ", re.MULTILINE)  # only GitHub nests these
LINK = re.compile(r"\]\(([^()\s#:]+)(#[^()\s]*)?\)")

here, there = pathlib.Path.cwd(), pathlib.Path(sys.argv[1])
menu = (here / "docs/site/mkdocs.yml").read_text()
listed = subprocess.run(
    ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--"]
    + ["*.md", "*.svg", "*.png", "docs/site/site.css", ":!.github"],
    check=True, capture_output=True, text=True,
).stdout.split("\0")
files = [f for f in map(pathlib.Path, filter(None, listed)) if f.is_file() and not f.is_symlink()]
wrong = []


def lead(page, target, anchor):
    """Returns where a link of a page leads on the site."""
    path = (here / page.parent / target).resolve()
    if not path.is_relative_to(here) or not path.exists():
        wrong.append(f"{page} links to {target}, which isn't there")
        return f"]({target})"
    path = path.relative_to(here)
    if path / "README.md" in files:
        return f"]({target.rstrip('/')}/README.md{anchor})"
    if path in files:
        return f"]({target}{anchor})"
    kind = "tree" if path.is_dir() else "blob"
    return f"]({REPOSITORY}/{kind}/main/{path}{anchor})"


for file in files:
    (there / file).parent.mkdir(parents=True, exist_ok=True)
    if file.suffix != ".md":
        shutil.copy(file, there / file)
        continue
    source = file.read_text()
    if SHALLOW.search(source):
        wrong.append(f"{file} has a list in a list with less than four spaces in front")
    if not re.search(rf": {re.escape(str(file))}$", menu, re.MULTILINE):
        wrong.append(f"{file} isn't in the menu, in docs/site/mkdocs.yml")
    text = LINK.sub(lambda m: lead(file, m[1], m[2] or ""), BADGE.sub("", source))
    (there / file).write_text(text)
if wrong:
    sys.exit("\n".join(wrong))
