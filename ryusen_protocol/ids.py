"""Names of identities. Each is opaque text; only the server derives or mints them."""

from typing import NewType

Workspace = NewType("Workspace", str)
"""Event-routing and authorization boundary."""

Application = NewType("Application", str)
"""Deployment and execution boundary inside a workspace."""

FunctionId = NewType("FunctionId", str)
TriggerId = NewType("TriggerId", str)
EventId = NewType("EventId", str)
RunId = NewType("RunId", str)
StepId = NewType("StepId", str)
AttemptId = NewType("AttemptId", str)

OperationId = NewType("OperationId", str)
"""Stable over every physical attempt of one (run, step, phase)."""

RequestId = NewType("RequestId", str)
"""Fresh for every dispatch; what an answer is correlated by."""

InstanceId = NewType("InstanceId", str)
"""One worker process, stable over its reconnects."""

SessionId = NewType("SessionId", str)
ReleaseId = NewType("ReleaseId", str)
ManifestGeneration = NewType("ManifestGeneration", str)
RoutingGeneration = NewType("RoutingGeneration", str)
