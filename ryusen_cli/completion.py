"""Completion scripts for shells, written from the command tree. Static: completing starts no Python, so it is as quick as the shell.

Knows words and flags alone. What a flag takes is left to the shell, which completes files.
"""

from __future__ import annotations

from typing import Any, Final

from ryusen_cli.parsing import Deferred

SHELLS: Final = ("bash", "zsh", "fish")

Tree = dict[tuple[str, ...], tuple[list[str], list[str]]]
"""A command's words to the words and the flags that may come next."""


def tree_of(group: Any) -> Tree:
    """Every command below `group`, which stands for no words."""
    tree: Tree = {}

    def walk(words: tuple[str, ...], command: Any) -> None:
        command = command.whole() if isinstance(command, Deferred) else command
        below: dict[str, Any] = getattr(command, "commands", {})
        flags = [flag for parameter in command.params if parameter.param_type_name == "option" for flag in _flags(parameter)]
        tree[words] = (sorted(below), [*sorted(flags), "--help"])
        for name, one in below.items():
            walk((*words, name), one)

    walk((), group)
    return tree


def script(shell: str, tree: Tree) -> str:
    """The script for a shell of `SHELLS`."""
    return _fish(tree) if shell == "fish" else _bash(tree, zsh=shell == "zsh")


def _flags(parameter: Any) -> list[str]:
    return [flag for flag in (*parameter.opts, *parameter.secondary_opts) if flag.startswith("--")]


def _bash(tree: Tree, *, zsh: bool) -> str:
    cases = "\n".join(
        f'    "{" ".join(words)}") words="{" ".join(below)}"; flags="{" ".join(flags)}" ;;' for words, (below, flags) in tree.items()
    )
    head = "autoload -Uz bashcompinit && bashcompinit\n" if zsh else ""
    return f"""# ryusen completion
{head}_ryusen() {{
  local current="${{COMP_WORDS[COMP_CWORD]}}" path="" word words flags i
  for ((i = 1; i < COMP_CWORD; i++)); do
    word="${{COMP_WORDS[i]}}"
    case "$word" in
      -*) break ;;
    esac
    case " {_known(tree)} " in
      *" ${{path:+$path/}}$word "*) path="${{path:+$path/}}$word" ;;
      *) break ;;
    esac
  done
  words=""; flags=""
  case "${{path//\\// }}" in
{cases}
  esac
  case "$current" in
    -*) COMPREPLY=($(compgen -W "$flags" -- "$current")) ;;
    *) COMPREPLY=($(compgen -W "$words" -- "$current")) ;;
  esac
}}
complete -o default -F _ryusen ryusen
"""


def _known(tree: Tree) -> str:
    return " ".join("/".join(words) for words in tree if words)


def _fish(tree: Tree) -> str:
    lines = ["# ryusen completion"]
    for words, (below, flags) in tree.items():
        if words:
            seen = "; and ".join(f"__fish_seen_subcommand_from {word}" for word in words)
            after = "" if not below else f"; and not __fish_seen_subcommand_from {' '.join(below)}"
            condition = f"{seen}{after}"
        else:
            condition = "__fish_use_subcommand"
        if below:
            lines.append(f"complete -c ryusen -f -n '{condition}' -a '{' '.join(below)}'")
        lines += [f"complete -c ryusen -n '{condition}' -l {flag.removeprefix('--')}" for flag in flags]
    return "\n".join(lines) + "\n"
