"""The check of the documentation site finds links to what is not there."""

from __future__ import annotations

from pathlib import Path

from tools.check_links import broken_links


def test_missing_pages_and_anchors_are_found(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "a b.html").write_text(
        '<h1 id="there">x</h1><a href="../index.html#top">up</a><img src="no.png">'
    )
    good = '<a href="sub/a%20b.html#there">1</a><a href="#top">2</a><a href="https://example.org/x">3</a>'
    (tmp_path / "index.html").write_text(
        f'<h1 id="top">x</h1>{good}<a href="sub/a%20b.html#gone">4</a><a href="c.html">5</a>'
    )
    (tmp_path / "llms.txt").write_text("[d](d.html), [top](index.html)")
    assert broken_links(tmp_path) == [
        "index.html: sub/a%20b.html#gone has no such anchor",
        "index.html: c.html does not exist",
        "sub/a b.html: no.png does not exist",
        "llms.txt: d.html does not exist",
    ]
