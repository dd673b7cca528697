"""A bounded number of simulated lives in every test run, and what the simulation itself must keep: one seed, one run."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.simulation.coverage import coverage
from tests.simulation.life import TRANSITIONS_MIN
from tests.simulation.mutants import MUTANTS, Mutant, mutated
from tests.simulation.options import Options
from tests.simulation.simulate import Result, simulate

SEEDS_IN_ONE_TEST = 25
TESTS = 80
SHORTER = Options(steps=12)
"""Acts enough for forty transitions; longer lives are for `make simulate`."""
DIGESTS = "from tests.simulation.simulate import simulate; print([simulate(seed).digest for seed in (3, 14, 15)])"
QUICKLY_CAUGHT = (
    "an effect leaves before its commit",
    "the unwind goes forward",
    "memory outlives a failed commit",
    "leases never end",
    "a wait that is over stays stored",
    "what is owed is not written down",
    "an exchange keeps its slot",
)


def held(result: Result) -> Result:
    """A result without a violation."""
    assert result.violation is None, f"{result.violation}\nseed {result.seed}, again: {result.replay}\n{result.details}"
    return result


@pytest.mark.parametrize("part", range(TESTS))
def test_every_life_keeps_the_invariants_and_ends_well(part: int) -> None:
    results = [held(simulate(part * SEEDS_IN_ONE_TEST + number, SHORTER)) for number in range(SEEDS_IN_ONE_TEST)]
    short = [result.seed for result in results if result.transitions < TRANSITIONS_MIN]
    assert not short, f"lives with fewer than {TRANSITIONS_MIN} transitions: {short}"


@pytest.mark.parametrize("how", ["before", "after", "between"])
def test_a_server_that_dies_at_any_of_its_commits_goes_on_well(how: str) -> None:
    for commit in range(4, 40, 3):
        held(simulate(7, Options(steps=12, crash_at_commit=commit, crash_how=how)))


def test_every_check_after_every_transition_finds_no_more() -> None:
    for seed in range(4):
        held(simulate(900_000 + seed, Options(thorough=True)))


def test_the_lives_reach_most_meetings_of_commands_and_states() -> None:
    edges: Counter[str] = Counter()
    ends: Counter[str] = Counter()
    acts: Counter[str] = Counter()
    for seed in range(30):
        result = held(simulate(800_000 + seed, Options(steps=60)))
        edges += result.edges
        ends += result.outcomes
        acts.update(result.acts)
    assert coverage(edges).share > 0.4, coverage(edges).missing  # the rest takes more lives than a test run has
    assert {end.split("/")[0] for end in ends} == {"succeeded", "failed", "cancelled", "timed_out"}
    assert {end.split("/")[1] for end in ends} == {"not_required", "fully_compensated", "partially_compensated", "compensation_failed"}
    assert min(acts.values()) > 0


def test_a_seed_gives_the_same_run_twice_and_whatever_strings_hash_to() -> None:
    here = str([simulate(seed).digest for seed in (3, 14, 15)])
    for hash_seed in ("0", "4711"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        there = subprocess.run([sys.executable, "-c", DIGESTS], capture_output=True, text=True, env=environment, check=True)
        assert there.stdout.strip() == here


def test_another_seed_is_another_run() -> None:
    assert len({simulate(seed).digest for seed in range(5)}) == 5


def test_a_trace_tells_what_happened_without_changing_it() -> None:
    quiet, told = simulate(2), simulate(2, keep_trace=True)
    assert quiet.digest == told.digest
    assert quiet.trace is None
    assert told.trace is not None
    assert any("callback" in line for line in told.trace)


@pytest.mark.parametrize("mutant", MUTANTS, ids=[mutant.name for mutant in MUTANTS])
def test_every_planted_mistake_still_fits_the_source(mutant: Mutant) -> None:
    for module in {edit.module for edit in mutant.edits}:
        spec = importlib.util.find_spec(module)
        assert spec is not None
        assert spec.origin is not None
        source = Path(spec.origin).read_text()
        compile(mutated(source, [edit for edit in mutant.edits if edit.module == module]), spec.origin, "exec")


@pytest.mark.parametrize("name", QUICKLY_CAUGHT)
def test_a_planted_mistake_is_caught(name: str) -> None:
    words = [sys.executable, "-m", "tests.simulation.mutants", "--hunt", name, "--seeds", "20"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("seed ")


def test_no_two_planted_mistakes_share_a_name() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 20
