"""Griffe extension: read the section `Example:` of a docstring as code, which Griffe expects under `Examples:`."""

from __future__ import annotations

from typing import Any

import griffe


class DocstringExamples(griffe.Extension):
    """Rename the section before the docstring is parsed."""

    def on_instance(self, *, obj: Any, **_: Any) -> None:
        """Handle one module, class, function or attribute."""
        if obj.docstring is not None:
            obj.docstring.value = obj.docstring.value.replace("\nExample:\n", "\nExamples:\n")
