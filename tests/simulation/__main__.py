"""`python -m tests.simulation`: many seeds, on every processor, or one of them again with everything that happened in it."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial

from tests.simulation.coverage import coverage
from tests.simulation.life import TRANSITIONS_MIN
from tests.simulation.options import Options
from tests.simulation.simulate import Result, simulate

CHUNK = 20
TELL_EVERY = 1_000


def parsed(words: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.simulation", description="Deterministic simulation of the server and its workers."
    )
    parser.add_argument("--seeds", type=int, default=200, help="how many seeds to run")
    parser.add_argument("--from", type=int, default=0, dest="first", help="the first seed")
    parser.add_argument("--steps", type=int, default=Options().steps, help="acts and faults in each life")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--thorough", action="store_true", help="every invariant after every transition")
    parser.add_argument("--trace", action="store_true", help="print all that happens; for one seed")
    parser.add_argument("--keep-going", action="store_true", help="do not stop at the first violation")
    for switch in ("shuffle", "merge", "early"):
        parser.add_argument(
            f"--{switch}", action=argparse.BooleanOptionalAction, default=None, help="fix this instead of leaving it to the seed"
        )
    parser.add_argument("--crash-at", type=int, default=None, help="kill the server at this commit")
    parser.add_argument("--crash-how", choices=("before", "after", "between"), default="before")
    return parser.parse_args(words)


def options_of(given: argparse.Namespace) -> Options:
    """The options of every seed."""
    return Options(
        steps=given.steps,
        shuffle=given.shuffle,
        merge=given.merge,
        early=given.early,
        thorough=given.thorough,
        crash_at_commit=given.crash_at,
        crash_how=given.crash_how,
    )


def results(given: argparse.Namespace) -> Iterator[Result]:
    """The seeds' results, in order."""
    options = options_of(given)
    seeds = range(given.first, given.first + given.seeds)
    if given.jobs == 1 or given.seeds == 1:
        for seed in seeds:
            yield simulate(seed, options, keep_trace=given.trace)
        return
    with ProcessPoolExecutor(given.jobs) as pool:
        yield from pool.map(partial(simulate, options=options), seeds, chunksize=CHUNK)


def told(result: Result) -> str:
    """A violation, and how to see it again."""
    return f"seed {result.seed}: {result.violation}\n  again: {result.replay}\n  trace {result.digest}"


def main(words: list[str] | None = None) -> int:
    """Returns 1 if any seed broke anything."""
    given = parsed(words)
    began = time.perf_counter()
    edges: Counter[str] = Counter()
    outcomes: Counter[str] = Counter()
    schedules = transitions = callbacks = lives = short = failed = 0
    for result in results(given):
        schedules += 1
        transitions += result.transitions
        short += result.transitions < TRANSITIONS_MIN
        callbacks += result.callbacks
        lives += result.lives
        edges.update(result.edges)
        outcomes.update(result.outcomes)
        if result.trace is not None:
            print("\n".join(result.trace))
        if result.violation is not None:
            failed += 1
            print(told(result), flush=True)
            if given.seeds == 1:
                print(result.details)
            if not given.keep_going:
                break
        if schedules % TELL_EVERY == 0:
            print(
                f"{schedules} of {given.seeds} in {time.perf_counter() - began:.0f} s: {transitions} transitions, "
                f"{coverage(edges).share:.1%} of the commands in states, {failed} violations",
                file=sys.stderr, flush=True,
            )  # fmt: skip
    took = time.perf_counter() - began
    reached = coverage(edges)
    print(f"schedules {schedules}, of them {short} of less than {TRANSITIONS_MIN} transitions; transitions {transitions}")
    print(f"callbacks {callbacks}; lives of the server {lives}; {took:.0f} s")
    print(f"commands in states reached {reached.reached} of {reached.possible} ({reached.share:.1%})")
    print("ends: " + ", ".join(f"{name} {count}" for name, count in outcomes.most_common()))
    if schedules > 1 and reached.missing:
        print("not reached: " + ", ".join(reached.missing))
    if reached.unlisted:
        print("reached, and not on the list: " + ", ".join(reached.unlisted))
    print("violations: none" if not failed else f"violations: {failed}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
