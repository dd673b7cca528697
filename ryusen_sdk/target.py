"""TARGET: finds the one `Ryusen` object that `package.module`, `package.module:name` or `path/file.py` leads to.

Owns the errors of a target that does not load, each with its place and its fix. Starts nothing.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Final

from ryusen_sdk.app import Ryusen
from ryusen_sdk.errors import TargetError

_OWN_FOLDERS: Final = (str(Path(__file__).parent), str(Path(importlib.__file__).parent), "<frozen importlib")


def load_target(target: str) -> Ryusen:
    """The application a target names, its `include` modules imported. The current folder is importable. Raises `TargetError`."""
    text, _, name = target.partition(":")
    if not text:
        raise TargetError(f"{target!r} is no target; write package.module, package.module:name or path/file.py")
    module = _import(text)
    app = _named(module, name, target) if name else _only(module, target)
    try:
        app.load()
    except BaseException as error:
        _reraise_exit(error)
        raise TargetError(_failed_import(f"a module included by {target}", error), at_import=True) from error
    return app


def _import(text: str) -> ModuleType:
    folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    is_path = text.endswith(".py") or "/" in text or "\\" in text
    name = _module_of_path(Path(text)) if is_path else text
    try:
        return importlib.import_module(name)
    except BaseException as error:
        _reraise_exit(error)
        if isinstance(error, ModuleNotFoundError) and error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise TargetError(_not_found(text, name)) from None
        raise TargetError(_failed_import(text, error), at_import=True) from error


def _module_of_path(path: Path) -> str:
    """The module name of a file, with its folder importable: a file in a package keeps its package, so relative imports work."""
    if not path.is_file():
        hint = " (it is a folder; name a file or a module)" if path.is_dir() else ""
        raise TargetError(f"there is no file {path}{hint}")
    resolved = path.resolve()
    parts = [resolved.stem]
    folder = resolved.parent
    while (folder / "__init__.py").is_file():
        parts.insert(0, folder.name)
        folder = folder.parent
    if resolved.stem == "__init__":
        parts.pop()
    if not all(part.isidentifier() for part in parts):
        return _load_file(resolved)
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    return ".".join(parts)


def _load_file(path: Path) -> str:
    """Registers a file whose name is no identifier (`my-shop.py`) as a module, for `import_module` to find."""
    name = "".join(character if character.isalnum() else "_" for character in path.stem)
    name = f"ryusen_target_{name}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise TargetError(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        del sys.modules[name]
        _reraise_exit(error)
        raise TargetError(_failed_import(str(path), error), at_import=True) from error
    return name


def _named(module: ModuleType, name: str, target: str) -> Ryusen:
    found: object = module
    for part in name.split("."):
        found = getattr(found, part, None)
    if isinstance(found, Ryusen):
        return found
    known = _registries(module)
    if found is None:
        hint = f"; it has {', '.join(sorted(known))}" if known else ""
        raise TargetError(f"{target}: the module has nothing named {name!r}{hint}")
    raise TargetError(f"{target}: {name!r} is {type(found).__name__}, not a Ryusen object")


def _only(module: ModuleType, target: str) -> Ryusen:
    known = _registries(module)
    apps = list({id(app): app for app in known.values()}.values())
    if len(apps) == 1:
        return apps[0]
    if not apps:
        raise TargetError(f'{target} ({module.__file__}) has no Ryusen object; write app = Ryusen("shop") and register functions on it')
    names = ", ".join(sorted(known))
    raise TargetError(f"{target} has several Ryusen objects ({names}); name one: {target}:{min(known)}")


def _registries(module: ModuleType) -> dict[str, Ryusen]:
    return {name: value for name, value in vars(module).items() if isinstance(value, Ryusen)}


def _not_found(text: str, name: str) -> str:
    file = Path(*name.split(".")).with_suffix(".py")
    return (
        f"there is no module {text!r} for {sys.executable}. Looked in {Path.cwd()} (for example {file}) and in what is installed there; "
        "if your project has an environment of its own, install ryusen into it and run it from there"
    )


def _failed_import(text: str, error: BaseException) -> str:
    if isinstance(error, SyntaxError) and error.filename is not None:
        return f"{text} does not import: {error.filename}:{error.lineno}: SyntaxError: {error.msg}"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(_OWN_FOLDERS)]
    place = f"{frames[-1].filename}:{frames[-1].lineno}: " if frames else ""
    missing = f" (interpreter: {sys.executable})" if isinstance(error, ModuleNotFoundError) else ""
    return f"{text} does not import: {place}{type(error).__name__}: {error}{missing}"


def _reraise_exit(error: BaseException) -> None:
    """Ctrl+C stays Ctrl+C; a module that calls sys.exit() on import is a failed import like any other."""
    if isinstance(error, KeyboardInterrupt):
        raise error
