"""The command tree: which commands there are, and where each is found.

Imports no command's machinery: modules of commands import theirs when they run, and a group its modules when it is called, so that
`--help` is quick.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ryusen_cli.commands import about, backup, doctor, keeping, local, scaffold, send, tui
from ryusen_cli.parsing import command_of, group_of, whole_group

if TYPE_CHECKING:
    from collections.abc import Callable

    Commands = dict[str, Callable[..., object]]


def build() -> Any:
    """The whole command tree, each command of it as far as its name and its purpose."""
    return whole_group("ryusen", "Ryusen runs durable workflows written as ordinary Python functions.", [
        command_of("dev", local.dev),
        command_of("serve", local.serve),
        command_of("worker", local.worker),
        command_of("tui", tui.tui),
        command_of("send", send.send),
        command_of("backup", backup.backup),
        command_of("prune", keeping.prune),
        command_of("init", scaffold.init),
        command_of("doctor", doctor.doctor),
        command_of("completion", about.completion),
        command_of("version", about.version),
        group_of("runs", "Find runs, read one, follow it, wait for it, stop it, wake it.", _runs),
        group_of("unknown", "Find effects whose outcome nobody could establish, and settle them.", _unknown),
        group_of("attempts", "Read attempts.", _attempts),
        group_of("events", "Read events and what they started.", _events),
        group_of("functions", "Read functions and who can run them.", _functions),
        group_of("apps", "Read applications and their manifests, and publish one.", _apps),
        group_of("workers", "Read connected workers.", _workers),
        group_of("routing", "Read routing generations.", _routing),
        group_of("conformance", "Hold an SDK or a server of any language to the fixtures of the protocol.", _conformance),
        group_of("config", "See where settings come from.", lambda: {"show": about.config_show}),
    ])  # fmt: skip


def _runs() -> Commands:
    from ryusen_cli.commands import runs

    return {
        "ls": runs.ls, "show": runs.show, "history": runs.history, "tail": runs.tail, "wait": runs.wait,
        "cancel": runs.cancel, "rediscover": runs.rediscover,
    }  # fmt: skip


def _unknown() -> Commands:
    from ryusen_cli.commands import unknown

    return {"ls": unknown.ls, "show": unknown.show, "resolve": unknown.resolve}


def _attempts() -> Commands:
    from ryusen_cli.commands import inspect

    return {"ls": inspect.attempts_ls, "show": inspect.attempts_show}


def _events() -> Commands:
    from ryusen_cli.commands import inspect

    return {"ls": inspect.events_ls, "show": inspect.events_show}


def _functions() -> Commands:
    from ryusen_cli.commands import functions, inspect

    return {"ls": inspect.functions_ls, "show": functions.show}


def _apps() -> Commands:
    from ryusen_cli.commands import deploy, inspect

    return {"ls": inspect.apps_ls, "show": inspect.apps_show, "publish": deploy.apps_publish}


def _workers() -> Commands:
    from ryusen_cli.commands import inspect

    return {"ls": inspect.workers_ls}


def _routing() -> Commands:
    from ryusen_cli.commands import inspect

    return {"ls": inspect.routing_ls, "show": inspect.routing_show}


def _conformance() -> Commands:
    from ryusen_cli.commands import conformance

    return {"worker": conformance.worker, "http": conformance.http, "server": conformance.server}
