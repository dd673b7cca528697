"""One thin adapter to the argument parser: texts, flags and whole numbers are converted without its validation library.

That library takes longer to import than a short command takes to run, and every parameter here is a text, a list of texts, a flag
or a whole number. Where a version of the parser has no such seam, it converts by itself and only time is lost.
"""

from __future__ import annotations

from typing import Any, Final

import typer
from typer.core import TyperCommand, TyperGroup

_NUMBERS: Final = (int, int | None)
_TEXTS: Final = (str, str | None)
_LISTS: Final = (list[str], list[str] | None)


class LeanCommand(TyperCommand):
    """A command whose parameters convert by `_Plain`."""

    def get_params(self, ctx: Any) -> Any:
        """All parameters, the help flag too, which the parser makes by itself."""
        return [_lean(parameter) for parameter in super().get_params(ctx)]


class LeanGroup(TyperGroup):
    """A group whose own flags convert by `_Plain`."""

    def get_params(self, ctx: Any) -> Any:
        """All parameters, the help flag too, which the parser makes by itself."""
        return [_lean(parameter) for parameter in super().get_params(ctx)]


def _lean(parameter: Any) -> Any:
    annotation = getattr(getattr(parameter, "type_descriptor", None), "annotation", None)
    if hasattr(parameter, "_runtime_param") and annotation in {*_NUMBERS, *_TEXTS, *_LISTS, bool, bool | None}:
        parameter._runtime_param = _Plain(annotation)  # noqa: SLF001 - the seam
    return parameter


class _Plain:
    """Converts one parameter as its annotation says."""

    def __init__(self, annotation: Any) -> None:
        self._number = annotation in _NUMBERS
        self._list = annotation in _LISTS

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        """The parser's call: the parameter's value from its text."""
        if value is None:
            return () if self._list else None
        if not self._number:
            return value
        try:
            return int(value)
        except ValueError as error:
            raise typer.BadParameter(f"{value!r} is not a whole number", ctx=ctx, param=param) from error
