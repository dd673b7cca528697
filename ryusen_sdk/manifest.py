"""The registry of one application, and the manifest that is exactly it.

Owns what can be registered and refuses the rest, naming places in the source. Runs nothing and sends nothing.
"""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

from ryusen_protocol.ids import FunctionId, TriggerId
from ryusen_protocol.limits import ID_BYTES_MAX
from ryusen_protocol.manifest import FunctionDeclaration, Publication, TriggerDeclaration
from ryusen_sdk.errors import DefinitionError, DuplicateFunction, MisuseError
from ryusen_sdk.event import Event
from ryusen_sdk.options import Span, timeout_ms
from ryusen_sdk.step import Step, SyncStep
from ryusen_sdk.typed import type_name, type_problem

_EVENT_ANNOTATION: Final = re.compile(r"(?:\w+\.)*Event\[.*\]", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Function:
    """One registered function. `event_type` is the T of `Event[T]` in its signature."""

    id: FunctionId
    call: Callable[[Event[Any], Any], Any]
    is_async: bool
    timeout_ms: int | None
    triggers: tuple[TriggerDeclaration, ...]
    file: str
    line: int

    @property
    def place(self) -> str:
        return f"{self.file}:{self.line}"

    def event_type(self) -> type[Any] | None:
        """The T of `Event[T]`, or `None`. Raises `DefinitionError` for one whose name leads nowhere."""
        return _event_type(self)


class Registry:
    """The functions of one application by id. Complete desired state: what is not in it does not exist."""

    def __init__(self) -> None:
        self._functions: dict[str, Function] = {}

    def add(self, call: Callable[..., Any], on: str | Sequence[str] | None, function_id: str | None, timeout: Span | None) -> Function:
        """Registers a function. Raises `DefinitionError`."""
        file, line = _place(call)
        name = _checked_id("function id", _default_id(call) if function_id is None else function_id)
        function = Function(
            id=FunctionId(name),
            call=call,
            is_async=_check_signature(call, name),
            timeout_ms=_timeout(name, timeout),
            triggers=tuple(_trigger(name, event_name) for event_name in _event_names(name, on)),
            file=file,
            line=line,
        )
        known = self._functions.get(name)
        if known is not None and not _is_reimport(known, function):
            raise DuplicateFunction(
                f"two functions have the id {name!r}: {known.place} and {function.place}. Give one of them another: @app.function(id=…)"
            )
        self._functions[name] = function
        return function

    def get(self, function_id: str) -> Function | None:
        return self._functions.get(function_id)

    def of(self, call: object) -> Function:
        """The function that this is the code of. Raises `MisuseError` unless it is registered under exactly one id."""
        functions = self.functions()
        found = [function for function in functions if _is_same(function.call, call)]
        found = found or [function for function in functions if _is_executed_again(function.call, call)]
        name = getattr(call, "__qualname__", None) or repr(call)[:80]
        if not found:
            raise MisuseError(f"{name} is no function of this application; register it with @app.function(), or name the id of one")
        if len(found) > 1:
            ids = ", ".join(repr(function.id) for function in found)
            raise MisuseError(f"{name} is registered under several ids ({ids}); name the one that is meant")
        return found[0]

    def functions(self) -> list[Function]:
        """Every function, ordered by id."""
        return [self._functions[name] for name in sorted(self._functions, key=str.encode)]


@dataclass(frozen=True, slots=True)
class Manifest:
    """The complete desired state of one application. The same registry gives the same manifest, byte for byte."""

    functions: tuple[FunctionDeclaration, ...]
    triggers: tuple[TriggerDeclaration, ...]
    contents: str
    digest: str

    def publication(self, expected_parent: str | None) -> Publication:
        """What is sent to activate it on top of a generation."""
        from ryusen_protocol.manifests import sdk_publication

        return sdk_publication(self.functions, self.triggers, cast("Any", expected_parent))


def manifest_of(registry: Registry) -> Manifest:
    """The manifest that is exactly this registry."""
    # Only here, so that importing an application stays quick.
    from ryusen_protocol.manifests import content_digest, sdk_publication

    functions = registry.functions()
    publication = sdk_publication(
        [FunctionDeclaration(function.id, function.timeout_ms) for function in functions],
        [trigger for function in functions for trigger in function.triggers],
        None,
    )
    return Manifest(
        tuple(publication.functions),
        tuple(publication.triggers),
        publication.contents,
        content_digest(publication.contents, publication.functions, publication.triggers),
    )


# What a function may be.


def _default_id(call: Callable[..., Any]) -> str:
    name = getattr(call, "__name__", None)
    if not isinstance(name, str) or not name.isidentifier():
        raise DefinitionError(f"{call!r:.80} has no name to make an id of; give it one: @app.function(id=…)")
    return name.replace("_", "-")


def _check_signature(call: object, name: str) -> bool:
    """Whether it is a coroutine function. Refuses what cannot be called with (event, step)."""
    if not callable(call) or inspect.isclass(call):
        raise DefinitionError(f"@app.function registers a function, not {call!r:.80}")
    if inspect.isgeneratorfunction(call) or inspect.isasyncgenfunction(call):
        raise DefinitionError(f"the function {name!r} is a generator; a function returns its result once")
    try:
        parameters = inspect.signature(call)
        parameters.bind(None, None)
    except ValueError:
        parameters = None
    except TypeError:
        raise DefinitionError(f"the function {name!r} must take (event, step)") from None
    is_async = is_async_callable(call)
    if parameters is not None:
        _check_step_kind(name, parameters, is_async=is_async)
    return is_async


def is_async_callable(call: object) -> bool:
    """Whether calling it gives a coroutine: async functions, bound methods, partials and objects with an async `__call__`."""
    return inspect.iscoroutinefunction(call) or inspect.iscoroutinefunction(getattr(call, "__call__", None))  # noqa: B004 - its kind is asked, not whether it is callable


def _check_step_kind(name: str, signature: inspect.Signature, *, is_async: bool) -> None:
    positional = [p for p in signature.parameters.values() if p.kind in {p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD}]
    annotation = positional[1].annotation if len(positional) > 1 else None
    written = annotation.rpartition(".")[2] if isinstance(annotation, str) else getattr(annotation, "__name__", "")
    expected = Step if is_async else SyncStep
    wrong = SyncStep if is_async else Step
    if written == wrong.__name__ and (isinstance(annotation, str) or annotation is wrong):
        kind = "async def" if is_async else "def"
        raise DefinitionError(f"the function {name!r} is a `{kind}`, which takes a {expected.__name__}, not a {wrong.__name__}")


def _checked_id(what: str, text: object) -> str:
    if not isinstance(text, str) or not text:
        raise DefinitionError(f"a {what} is non-empty text, not {text!r}")
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise DefinitionError(f"the {what} {text!r} is not valid Unicode") from None
    if size > ID_BYTES_MAX or "\x00" in text:
        raise DefinitionError(f"the {what} {text[:80]!r} has {size} bytes; it may have {ID_BYTES_MAX}, and no NUL")
    return str(text)


def _event_names(name: str, on: object) -> list[str]:
    if on is None:
        return []
    if not isinstance(on, str | Iterable):
        raise DefinitionError(f"on= of function {name!r} is an event name or a list of them, not {on!r:.80}")
    names: list[object] = [on] if isinstance(on, str) else list(cast("Iterable[object]", on))
    checked = [_checked_id(f"event name of function {name!r}", event_name) for event_name in names]
    if len(set(checked)) != len(checked):
        raise DefinitionError(f"the function {name!r} names an event twice: {', '.join(checked)}")
    return checked


def _trigger(name: str, event_name: str) -> TriggerDeclaration:
    trigger_id = _checked_id("trigger id", f"{name}/{event_name}")
    return TriggerDeclaration(TriggerId(trigger_id), event_name, FunctionId(name))


def _timeout(name: str, timeout: Span | None) -> int | None:
    try:
        return timeout_ms(f"function {name!r}", timeout)
    except MisuseError as refused:
        raise DefinitionError(str(refused)) from None


def _place(call: object) -> tuple[str, int]:
    unwrapped = inspect.unwrap(cast("Any", call)) if callable(call) else call
    code = getattr(unwrapped, "__code__", None) or getattr(getattr(unwrapped, "__func__", None), "__code__", None)
    return (code.co_filename, code.co_firstlineno) if code is not None else (repr(type(call)), 0)


def _is_reimport(known: Function, new: Function) -> bool:
    """The same source line executed again, as `python -m` and an import of the same file do."""
    return known.line > 0 and (known.file, known.line) == (new.file, new.line) and known.call is not new.call


def _is_same(registered: object, call: object) -> bool:
    """Bound methods are made anew at each access, and a decorator may stand between what was registered and what is at hand."""
    if registered is call or (inspect.ismethod(call) and registered == call):
        return True
    return callable(call) and callable(registered) and inspect.unwrap(call) is inspect.unwrap(registered) and not inspect.ismethod(call)


def _is_executed_again(registered: object, call: object) -> bool:
    """A file that is both run and imported makes each of its functions twice; the registry knows the newer ones."""
    if not (inspect.isfunction(registered) and inspect.isfunction(call)):
        return False
    places = {(code.co_filename, code.co_firstlineno, code.co_qualname) for code in (registered.__code__, call.__code__)}
    return len(places) == 1 and call.__closure__ is None


# `Event[T]`.


def _event_type(function: Function) -> type[Any] | None:
    call = inspect.unwrap(function.call)
    call = getattr(call, "__func__", call)
    try:
        parameters = [
            p for p in inspect.signature(function.call).parameters.values() if p.kind in {p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD}
        ]
    except (TypeError, ValueError):
        return None
    annotation: object = parameters[0].annotation if parameters else None
    if isinstance(annotation, str):
        if _EVENT_ANNOTATION.fullmatch(annotation) is None:
            return None
        try:
            annotation = eval(annotation, getattr(call, "__globals__", {}), dict(inspect.getclosurevars(call).nonlocals))  # noqa: S307 - the user's own annotation
        except Exception as error:
            raise DefinitionError(
                f"the function {function.id!r} ({function.place}) is annotated {annotation}, which cannot be resolved: {error}. "
                "Import the type outside `if TYPE_CHECKING`."
            ) from error
    if typing.get_origin(annotation) is not Event:
        return None
    (kind,) = typing.get_args(annotation)
    if kind is Any:
        return None
    problem = type_problem(kind)
    if problem is not None:
        raise DefinitionError(f"the function {function.id!r} ({function.place}) takes Event[{type_name(kind)}]: {problem}")
    return kind
