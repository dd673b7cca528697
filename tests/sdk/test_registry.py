"""What can be registered, and the manifest that is exactly it."""

from __future__ import annotations

import functools
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ryusen_protocol.manifests import check_publication
from ryusen_sdk import DefinitionError, DuplicateFunction, Event, Ryusen, Step, SyncStep

if TYPE_CHECKING:
    from decimal import Decimal as Nowhere


async def body(event: Event, step: Step) -> None: ...


def sync_body(event: Event, step: SyncStep) -> None: ...


@pytest.mark.req("SDK-01", "SDK-02", "MAN-03", "MAN-15")
def test_the_manifest_is_the_registry_whatever_the_order() -> None:
    def build(*names: str) -> Ryusen:
        app = Ryusen("shop")
        for name in names:
            app.function(on=[f"{name}/b", f"{name}/a"], id=name, timeout="2h" if name == "z" else None)(body)
        return app

    manifest = build("z", "a", "é").manifest()
    assert [function.id for function in manifest.functions] == ["a", "z", "é"]
    assert [trigger.id for trigger in manifest.triggers][:2] == ["a/a/a", "a/a/b"]
    assert manifest.functions[1].timeout_ms == 7_200_000
    assert manifest == build("é", "z", "a").manifest()
    assert manifest.digest != build("z", "a").manifest().digest
    assert check_publication(manifest.publication(None)) is None
    assert manifest.publication("mg_1").expected_parent == "mg_1"


def test_defaults() -> None:
    app = Ryusen()
    app.function()(sync_body)
    assert (app.workspace, app.application) == ("default", "default")
    (function,) = app.registry.functions()
    assert (function.id, function.is_async, function.triggers, function.timeout_ms) == ("sync-body", False, (), None)


def test_the_decorator_gives_the_function_back() -> None:
    assert Ryusen().function(on="x")(body) is body


@pytest.mark.req("SDK-01")
def test_two_functions_of_one_id_name_both_places() -> None:
    app = Ryusen()
    app.function(id="same")(body)
    with pytest.raises(DuplicateFunction) as refused:
        app.function(id="same")(sync_body)
    assert str(refused.value).count(f"{Path(__file__).name}:") == 2
    with pytest.raises(DuplicateFunction):
        app.function(id="same")(body)


def test_the_same_source_imported_again_replaces_itself() -> None:
    app = Ryusen()
    for _ in range(2):

        @app.function(id="same")
        async def again(event: Event, step: Step) -> None: ...

    assert len(app.registry.functions()) == 1


def generator(event: Event, step: Step) -> Any:
    yield 1


async def async_generator(event: Event, step: Step) -> Any:
    yield 1


async def wrong_step(event: Event, step: SyncStep) -> None: ...


def wrong_sync_step(event: Event, step: Step) -> None: ...


def one(event: Event) -> None: ...


@pytest.mark.req("SDK-01")
@pytest.mark.parametrize(
    ("function", "options", "message"),
    [
        (body, {"id": ""}, "function id is non-empty"),
        (body, {"id": "a\x00"}, "no NUL"),
        (body, {"id": "x" * 257}, "256"),
        (body, {"id": "\ud800"}, "Unicode"),
        (body, {"id": 5}, "function id"),
        (body, {"on": ""}, "event name"),
        (body, {"on": ["a", "a"]}, "twice"),
        (body, {"on": ["a", 3]}, "event name"),
        (body, {"on": "x" * 256}, "trigger id"),
        (body, {"timeout": "soon"}, "not a duration"),
        (body, {"timeout": 0}, "longer than nothing"),
        (body, {"timeout": -1}, "longer than nothing"),
        (lambda event, step: None, {}, "no name"),
        (generator, {}, "generator"),
        (async_generator, {}, "generator"),
        (wrong_step, {}, "takes a Step, not a SyncStep"),
        (wrong_sync_step, {}, "takes a SyncStep, not a Step"),
        (one, {}, "(event, step)"),
        (int, {}, "registers a function"),
        ("text", {"id": "x"}, "registers a function"),
    ],
)
def test_what_cannot_be_registered_is_told(function: Any, options: dict[str, Any], message: str) -> None:
    app = Ryusen()
    with pytest.raises(DefinitionError, match=r".*") as refused:
        app.function(**options)(function)
    assert message in str(refused.value)
    assert app.registry.functions() == []


def test_a_decorator_without_parentheses_is_told() -> None:
    with pytest.raises(DefinitionError, match="parentheses"):
        Ryusen().function(body)  # type: ignore[arg-type]


@pytest.mark.parametrize("options", [{"application": ""}, {"workspace": "a\x00"}, {"application": 5}, {"include": "shop.refunds"}])
def test_bad_settings_of_the_application(options: dict[str, Any]) -> None:
    with pytest.raises(DefinitionError):
        Ryusen(**options)


def test_bound_methods_partials_and_objects() -> None:
    class Shop:
        async def fulfil(self, event: Event, step: Step) -> None: ...

        async def __call__(self, event: Event, step: Step) -> None: ...

    app = Ryusen()
    app.function()(Shop().fulfil)
    app.function(id="partial")(functools.partial(body))
    app.function(id="object")(Shop())
    assert {function.id: function.is_async for function in app.registry.functions()} == {"fulfil": True, "partial": True, "object": True}


@dataclass
class Order:
    id: int


async def typed_body(event: Event[Order], step: Step) -> None: ...


async def lost_type(event: Event[Nowhere], step: Step) -> None: ...


def test_the_type_of_an_event_is_found_even_as_text() -> None:
    app = Ryusen()
    app.function()(typed_body)
    app.function()(body)
    app.function()(lost_type)
    kinds = {function.id: function for function in app.registry.functions()}
    assert kinds["typed-body"].event_type() is Order
    assert kinds["body"].event_type() is None
    with pytest.raises(DefinitionError, match="TYPE_CHECKING"):
        kinds["lost-type"].event_type()


def test_included_modules_register_at_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "included_shop.py").write_text("from ryusen_sdk import Ryusen\napp = Ryusen('shop', include=['included_refunds'])\n")
    (tmp_path / "included_refunds.py").write_text(
        "from included_shop import app\n@app.function(on='refund')\ndef refund(event, step): ...\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    import importlib

    app = importlib.import_module("included_shop").app
    assert app.registry.functions() == []
    assert [function.id for function in app.manifest().functions] == ["refund"]
    for name in ("included_shop", "included_refunds"):
        sys.modules.pop(name, None)


def test_an_application_imports_nothing_that_only_serving_it_needs() -> None:
    """A command that only reads an application, and a worker on its way up, wait for its import."""
    source = """
import sys
from ryusen_sdk import Event, Ryusen, Step

app = Ryusen("shop", lifespan=lambda: None)

@app.function(on="order/placed")
async def fulfil(event: Event[dict[str, int]], step: Step) -> None:
    await step.invoke("pack", "pack", {})

app.manifest()
heavy = {"asyncio", "httpx", "websockets", "pydantic", "attr", "aiohttp", "sanic", "ryusen_sdk.worker"}
print(sorted(heavy & set(sys.modules)))
"""
    root = Path(__file__).parents[2]
    ran = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=60, check=True, cwd=root)
    assert ran.stdout.strip() == "[]"
