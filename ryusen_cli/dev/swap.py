"""When a worker is started, replaced, kept or restarted: the decisions of one target, without processes, files or clock.

| state                      | event                   | what happens                                                             |
|----------------------------|-------------------------|--------------------------------------------------------------------------|
| nothing runs               | sources saved           | start a candidate                                                        |
| current                    | sources saved           | start a candidate; the current one goes on working                       |
| current                    | saved as it runs        | nothing                                                                  |
| candidate                  | saved again             | drain the candidate, start another                                       |
| current, candidate         | saved back as current   | drain the candidate                                                      |
| any                        | save does not compile   | nothing runs differently; the error is shown                             |
| current, candidate         | candidate registers     | the candidate is current; the old one drains                             |
| current, candidate         | candidate ends          | the current one stays; shown                                             |
| current                    | current ends by itself  | start another after a pause that grows                                   |
| nothing else               | import fails            | wait for a save: the same code would fail again                          |
| nothing else               | candidate ends          | start another after a pause that grows                                   |
| any                        | drained one ends        | nothing; what had been live is told, with what is                        |
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

_PAUSE_FIRST_MS: Final = 250
_PAUSE_MAX_MS: Final = 10_000


@dataclass(frozen=True)
class Start:
    """Start a worker under this key, with the code as it is on disk, after a pause."""

    key: int
    release: str
    after_ms: int = 0


@dataclass(frozen=True)
class Drain:
    """Let this worker finish what it runs, then end."""

    key: int


@dataclass(frozen=True)
class Say:
    """Tell the person."""

    text: str
    is_trouble: bool = False


Action = Start | Drain | Say


@dataclass
class Slot:
    """The workers of one target. Every worker has a key; a key is used once."""

    name: str
    current: int | None = None
    candidate: int | None = None
    draining: set[int] = field(default_factory=set[int])
    crashes: int = 0
    _releases: dict[int, str] = field(default_factory=dict[int, str])
    _were_live: set[int] = field(default_factory=set[int])
    _last_key: int = 0
    _failed_at_import: set[int] = field(default_factory=set[int])
    _is_behind: bool = False
    """Whether what was saved last did not start, and the person was told so."""

    def release(self, key: int) -> str:
        """What a worker was started with."""
        return self._releases[key]

    def is_running(self, release: str) -> bool:
        """Whether a save of this release would change nothing."""
        running = self.candidate if self.candidate is not None else self.current
        return running is not None and self._releases[running] == release

    def saved(self, release: str) -> list[Action]:
        """The sources are now this release. The first call starts the first worker."""
        was_behind, self._is_behind = self._is_behind, False
        if self.is_running(release):
            return [Say(f"{self.name}: back to the code that runs ({release})")] if was_behind else []
        actions: list[Action] = []
        if self.candidate is not None:
            self.draining.add(self.candidate)
            actions.append(Drain(self.candidate))
            self.candidate = None
        if self.current is not None and self._releases[self.current] == release:
            return [*actions, Say(f"{self.name}: back to the code that runs ({release})")]
        if self.current is not None:
            actions.append(Say(f"{self.name}: changed, starting the new code"))
        self.crashes = 0
        return [*actions, self._start(release)]

    def broken(self, error: str) -> list[Action]:
        """A save that does not compile."""
        self._is_behind = True
        kept = "the last good code goes on" if self.current is not None or self.candidate is not None else "waiting for a save"
        return [Say(f"{self.name}: {error}", is_trouble=True), Say(f"{self.name}: {kept}")]

    def registered(self, key: int) -> list[Action]:
        """A worker gets work from now on. Reconnecting counts for nothing."""
        if key != self.candidate:
            return []
        old, self.current, self.candidate, self.crashes = self.current, key, None, 0
        if old is None:
            return []
        self.draining.add(old)
        self._were_live.add(old)
        return [Say(f"{self.name}: new code is live ({self._releases[key]}); {self._releases[old]} finishes its steps"), Drain(old)]

    def import_failed(self, key: int) -> list[Action]:
        """The user's code does not load; the worker will end."""
        self._failed_at_import.add(key)
        return []

    def ended(self, key: int, how: str) -> list[Action]:
        """A worker process is gone. `how` says it in words."""
        if key in self.draining:
            self.draining.discard(key)
            return self._drained(key)
        failed_at_import = key in self._failed_at_import
        if key == self.candidate:
            self.candidate = None
            if self.current is not None:
                self._is_behind = True
                return [Say(f"{self.name}: the new code did not start ({how}); the last good code goes on", is_trouble=True)]
        elif key == self.current:
            self.current = None
            if self.candidate is not None:
                return [Say(f"{self.name}: the worker ended ({how}); the new code is on its way", is_trouble=True)]
        else:
            return []
        if failed_at_import:
            return [Say(f"{self.name}: no worker runs; fix the code and save it", is_trouble=True)]
        return self._again(self._releases[key], how)

    def _drained(self, key: int) -> list[Action]:
        if key not in self._were_live:
            return []
        self._were_live.discard(key)
        live = "no code is live" if self.current is None else f"live is {self._releases[self.current]}"
        left = [self._releases[other] for other in sorted(self.draining & self._were_live)]
        more = f", and {', '.join(left)} still finishes" if left else ""
        return [Say(f"{self.name}: {self._releases[key]} has finished; {live}{more}")]

    def _again(self, release: str, how: str) -> list[Action]:
        pause_ms = min(_PAUSE_MAX_MS, _PAUSE_FIRST_MS * 2**self.crashes)
        self.crashes += 1
        said = Say(f"{self.name}: the worker ended ({how}); starting it again in {pause_ms / 1_000:g} s", is_trouble=True)
        return [said, self._start(release, pause_ms)]

    def _start(self, release: str, after_ms: int = 0) -> Start:
        self._last_key += 1
        self._releases[self._last_key] = release
        self.candidate = self._last_key
        return Start(self._last_key, release, after_ms)
