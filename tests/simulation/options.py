"""What a simulation is told: the seed, how long it lives, and switches that a replay repeats."""

from __future__ import annotations

import random

import msgspec


class Options(msgspec.Struct, frozen=True):
    """`steps`: acts before the faults stop. None of a switch leaves it to the seed."""

    steps: int = 30
    shuffle: bool | None = None
    merge: bool | None = None
    early: bool | None = None
    thorough: bool = False
    """Every invariant after every transition, rather than those over the whole history now and then."""
    crash_at_commit: int | None = None
    """Additionally kill the server at this commit, counted over the simulation."""
    crash_how: str = "before"

    def words(self) -> str:
        """The command line that repeats them."""
        words = [f"--steps {self.steps}"]
        for name in ("shuffle", "merge", "early"):
            value = getattr(self, name)
            if value is not None:
                words.append(f"--{name if value else 'no-' + name}")
        if self.thorough:
            words.append("--thorough")
        if self.crash_at_commit is not None:
            words.append(f"--crash-at {self.crash_at_commit} --crash-how {self.crash_how}")
        return " ".join(words)


class Temper(msgspec.Struct, frozen=True):
    """What kind of life a seed leads: how often each kind of trouble comes."""

    shuffle: bool
    merge: bool
    early: bool
    fan_out_batch: int
    runs_in_memory: int
    tick_ms: int
    crash_at_commit: float
    crash_at_obligation: float
    commit_fails: float
    read_fails: float
    hiccups: float
    commit_ms_max: int
    read_ms_max: int
    delay_ms_max: int
    slow: float
    weights: dict[str, int]
    pause_ms: tuple[int, ...]
    http: bool
    """Whether one application is behind a web server."""
    http_trouble: float
    exchange_ms: int
    callbacks: str
    """How callbacks mostly end: `good`, `mixed`, `bad`."""


TROUBLES = (
    "cut",
    "silence",
    "kill_worker",
    "pause_worker",
    "drain_worker",
    "kill_server",
    "stop_server",
    "disk_full",
    "unplug",
    "jump",
    "redeploy",
    "cancel",
    "rediscover",
    "impostor",
    "garble",
    "late",
    "overtaken",
    "register_wrongly",
    "publish",
    "resolve",
    "mistake",
)


def temper(seed: int, options: Options) -> Temper:
    """Each seed has its own mixture, so that troubles meet in many proportions."""
    chance = random.Random(f"temper/{seed}")
    weights = {"submit": chance.choice((10, 16, 24)), "wait": chance.choice((2, 6)), "mend": 6, "worker": 6, "cancel": 3, "publish": 1}
    weights["answer"] = chance.choice((4, 10, 20))
    for trouble in TROUBLES:
        if chance.random() < 0.6:
            weights[trouble] = weights.get(trouble, 0) + chance.choice((1, 1, 2, 4))
    stormy = chance.random() < 0.4
    shuffle = chance.random() < 0.4
    merge = chance.random() < 0.6
    early = chance.random() < 0.6
    return Temper(
        shuffle=shuffle if options.shuffle is None else options.shuffle,
        merge=merge if options.merge is None else options.merge,
        early=early if options.early is None else options.early,
        fan_out_batch=chance.choice((1, 2, 64)),
        runs_in_memory=chance.choice((1, 3, 20_000, 20_000)),
        tick_ms=chance.choice((250, 1_000, 1_000, 2_000, 2_000, 4_000, 4_000)),
        crash_at_commit=chance.choice((0.0, 0.01, 0.05)) if stormy else 0.0,
        crash_at_obligation=chance.choice((0.0, 0.0, 0.15)),
        commit_fails=chance.choice((0.0, 0.02, 0.1)) if stormy else 0.0,
        read_fails=chance.choice((0.0, 0.05, 0.2)) if stormy else 0.0,
        hiccups=chance.choice((0.0, 0.0, 0.5)),
        commit_ms_max=chance.choice((0, 2, 30)),
        read_ms_max=chance.choice((0, 1, 20)),
        delay_ms_max=chance.choice((0, 5, 80)),
        slow=chance.choice((0.0, 0.0, 0.05)),
        weights=weights,
        pause_ms=chance.choice(((0, 5, 50, 500), (0, 50, 500, 3_000), (5, 100, 3_000, 15_000, 40_000))),
        http=chance.random() < 0.6,
        http_trouble=chance.choice((0.0, 0.1, 0.3)),
        exchange_ms=chance.choice((15_000, 60_000)),
        callbacks=chance.choice(("good", "mixed", "mixed", "bad")),
    )
