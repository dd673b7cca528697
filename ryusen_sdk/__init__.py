"""Ryusen for Python: ordinary functions, remembered steps, automatic undo.

    from ryusen_sdk import Event, Ryusen, Step

    app = Ryusen("shop")

    @app.function(on="order/placed")
    async def fulfil_order(event: Event, step: Step):
        charge = await step.run("charge", charge_card, event.data, compensate=refund_card)
        await step.run("ship", ship, event.data)
        return {"charge": charge["id"]}

Everything named in `__all__` is public; modules and what else they hold are private. Sockets and HTTP are imported by what needs them.
"""

from typing import TYPE_CHECKING

from ryusen_protocol.values import BlobRef
from ryusen_sdk.app import Ryusen
from ryusen_sdk.errors import (
    ClientError,
    ConversionError,
    DefinitionError,
    DuplicateFunction,
    Failure,
    MisuseError,
    RegistrationRejected,
    RequestRefused,
    RyusenError,
    ServerUnreachable,
    StepFailed,
    TargetError,
    Terminal,
    WorkerError,
    WorkerReplaced,
)
from ryusen_sdk.event import Event, EventPayload, Parent
from ryusen_sdk.manifest import Manifest
from ryusen_sdk.operation import Operation, operation, run_logger
from ryusen_sdk.options import Compensate, Retry
from ryusen_sdk.step import Step, SyncStep

if TYPE_CHECKING:
    from ryusen_sdk.client import AsyncClient, Client, result_of
    from ryusen_sdk.status import WorkerStatus

__all__ = [
    "AsyncClient",
    "BlobRef",
    "Client",
    "ClientError",
    "Compensate",
    "ConversionError",
    "DefinitionError",
    "DuplicateFunction",
    "Event",
    "EventPayload",
    "Failure",
    "Manifest",
    "MisuseError",
    "Operation",
    "Parent",
    "RegistrationRejected",
    "RequestRefused",
    "Retry",
    "Ryusen",
    "RyusenError",
    "ServerUnreachable",
    "Step",
    "StepFailed",
    "SyncStep",
    "TargetError",
    "Terminal",
    "WorkerError",
    "WorkerReplaced",
    "WorkerStatus",
    "operation",
    "result_of",
    "run_logger",
]

_LAZY = {"AsyncClient": "client", "Client": "client", "result_of": "client", "WorkerStatus": "status"}


def __getattr__(name: str) -> object:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"{__name__}.{_LAZY[name]}"), name)
