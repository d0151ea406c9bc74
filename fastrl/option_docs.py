"""The documentation of each option, read from the string below its field."""

from __future__ import annotations

import ast
import inspect
import textwrap


def option_docs(section: type) -> dict[str, str]:
    """Per field of a dataclass the string literal below it, as one line."""
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(section))).body
    assert isinstance(definition, ast.ClassDef)
    docs = {}
    for field, below in zip(definition.body, definition.body[1:], strict=False):
        if (
            isinstance(field, ast.AnnAssign)
            and isinstance(field.target, ast.Name)
            and isinstance(below, ast.Expr)
            and isinstance(below.value, ast.Constant)
        ):
            docs[field.target.id] = " ".join(str(below.value.value).split())
    return docs
