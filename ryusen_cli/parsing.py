"""One thin adapter to the argument parser, which does no more than this command line needs.

Owns two savings. Texts, flags and whole numbers are converted without the parser's validation library, which takes longer to import
than a short command takes to run; where a version of the parser has no such seam, it converts by itself and only time is lost. And a
command's parameters are read from its signature when it is called: to read all of them takes longer than to print a page of help.
"""

from __future__ import annotations

from inspect import getdoc
from typing import TYPE_CHECKING, Any, Final

import typer
import typer.main
from typer.core import TyperCommand, TyperGroup

if TYPE_CHECKING:
    from collections.abc import Callable

_NUMBERS: Final = (int, int | None)
_TEXTS: Final = (str, str | None)
_LISTS: Final = (list[str], list[str] | None)
_CONTEXT: Final = {"help_option_names": ["-h", "--help"]}


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


class Deferred(TyperCommand):
    """What a group knows of a command before it is called: its name and what it is for."""

    def __init__(self, name: str, text: str, whole: Callable[[], Any]) -> None:
        super().__init__(name, help=text, rich_markup_mode=None)
        self.whole = whole
        """The command itself."""

    def make_context(self, info_name: Any, args: Any, parent: Any = None, **extra: Any) -> Any:
        """The context of the command itself: whoever is about to parse its arguments calls it."""
        return self.whole().make_context(info_name, args, parent, **extra)


def command_of(name: str, function: Callable[..., object]) -> Deferred:
    """A function as a command. Its docstring says what it is for, its signature what it takes."""

    def whole() -> Any:
        app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False, context_settings=_CONTEXT)
        app.command(name, cls=LeanCommand)(function)
        return typer.main.get_command(app)

    return Deferred(name, getdoc(function) or "", whole)


def group_of(name: str, text: str, commands: Callable[[], dict[str, Callable[..., object]]]) -> Deferred:
    """Functions as the commands of a group. They are asked for, and their modules imported, when the group is called."""

    def whole() -> Any:
        return whole_group(name, text, [command_of(word, function) for word, function in commands().items()])

    return Deferred(name, text, whole)


def whole_group(name: str, text: str, below: list[Deferred]) -> TyperGroup:
    """A group that is whole already. Called with nothing, it prints its help."""
    return LeanGroup(
        name=name,
        help=text,
        commands={command.name: command for command in below if command.name is not None},
        no_args_is_help=True,
        rich_markup_mode=None,
        context_settings=_CONTEXT,
    )


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
