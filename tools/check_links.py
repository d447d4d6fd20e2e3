"""Check every link inside the documentation site, which `make docs` builds. Links to other sites are not opened.

python -m tools.check_links [FOLDER]        by default build/site; exits with 1 if a page or an anchor does not exist
"""

from __future__ import annotations

import argparse
import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag, urlsplit


class Page(HTMLParser):
    """The links of a page, and the anchors that others can link to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        self.anchors |= {found[name] for name in ("id", "name") if name in found}
        self.links += [found[name] for name in ("href", "src") if name in found]


def broken_links(folder: Path) -> list[str]:
    """Return a sentence for each link from a page of a folder to a file or an anchor that is not there."""
    pages = {path: Page(path.read_text("utf-8")) for path in sorted(folder.rglob("*.html"))}
    found = [(path, link) for path, page in pages.items() for link in page.links]
    texts = folder.rglob("llms.txt")
    found += [(path, link) for path in texts for link in re.findall(r"\]\(([^)]+)\)", path.read_text("utf-8"))]
    problems = []
    for path, link in found:
        address, anchor = urldefrag(link)
        parts = urlsplit(address)
        if parts.scheme or parts.netloc or (path.name == "404.html" and link.startswith("/")):
            continue
        target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
        target = target / "index.html" if target.is_dir() else target
        name = f"{path.relative_to(folder)}: {link}"
        if not target.exists():
            problems.append(f"{name} does not exist")
        elif anchor and target in pages and unquote(anchor) not in pages[target].anchors:
            problems.append(f"{name} has no such anchor")
    return problems


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=Path("build/site"))
    folder = parser.parse_args().folder.resolve()
    problems = broken_links(folder)
    print(*problems, f"{len(list(folder.rglob('*.html')))} pages, {len(problems)} broken links", sep="\n")
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
