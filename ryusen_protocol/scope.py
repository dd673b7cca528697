"""Where something lives: a workspace, and an application inside it."""

import msgspec

from ryusen_protocol.ids import Application, Workspace


class Scope(msgspec.Struct, frozen=True, order=True):
    """The (workspace, application) pair that work, results and workers never cross."""

    workspace: Workspace
    application: Application
