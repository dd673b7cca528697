"""Which worker runs: every row of the table in `swap`."""

from __future__ import annotations

from ryusen_cli.dev.swap import Action, Drain, Say, Slot, Start


def acts(actions: list[Action]) -> list[Action]:
    return [action for action in actions if not isinstance(action, Say)]


def troubles(actions: list[Action]) -> list[str]:
    return [action.text for action in actions if isinstance(action, Say) and action.is_trouble]


def running(release: str = "r1") -> Slot:
    slot = Slot("shop")
    assert acts(slot.saved(release)) == [Start(1, release)]
    assert acts(slot.registered(1)) == []
    return slot


def test_the_old_worker_drains_only_when_the_new_one_is_registered() -> None:
    slot = running()
    assert acts(slot.saved("r2")) == [Start(2, "r2")]
    assert slot.current == 1
    assert acts(slot.registered(2)) == [Drain(1)]
    assert slot.current == 2
    assert acts(slot.ended(1, "exit code 143")) == []


def told(actions: list[Action]) -> list[str]:
    return [action.text for action in actions if isinstance(action, Say)]


def test_what_is_live_and_what_still_drains_is_told() -> None:
    slot = running()
    slot.saved("r2")
    assert told(slot.registered(2)) == ["shop: new code is live (r2); r1 finishes its steps"]
    slot.saved("r3")
    assert told(slot.registered(3)) == ["shop: new code is live (r3); r2 finishes its steps"]
    assert told(slot.ended(2, "exit code 143")) == ["shop: r2 has finished; live is r3, and r1 still finishes"]
    assert told(slot.ended(1, "exit code 143")) == ["shop: r1 has finished; live is r3"]
    slot.saved("r4")
    slot.saved("r5")
    assert told(slot.ended(4, "exit code 143")) == [], "it never was"


def test_a_save_that_changes_nothing_starts_nothing() -> None:
    slot = running()
    assert slot.saved("r1") == []
    slot.saved("r2")
    assert slot.saved("r2") == []


def test_a_save_during_a_swap_supersedes_it() -> None:
    slot = running()
    slot.saved("r2")
    assert acts(slot.saved("r3")) == [Drain(2), Start(3, "r3")]
    assert acts(slot.registered(2)) == []
    assert acts(slot.registered(3)) == [Drain(1)]


def test_saving_back_what_runs_only_drops_the_candidate() -> None:
    slot = running()
    slot.saved("r2")
    assert acts(slot.saved("r1")) == [Drain(2)]
    assert slot.current == 1
    assert slot.candidate is None


def test_a_save_that_does_not_compile_keeps_everything_as_it_is() -> None:
    slot = running()
    said = slot.broken("shop.py:3: SyntaxError")
    assert acts(said) == []
    assert troubles(said) == ["shop: shop.py:3: SyntaxError"]
    assert slot.current == 1


def test_going_back_from_code_that_does_not_start_to_what_runs_is_told_once() -> None:
    slot = running()
    slot.broken("shop.py:3: SyntaxError")
    assert told(slot.saved("r1")) == ["shop: back to the code that runs (r1)"]
    assert slot.saved("r1") == []
    slot.saved("r2")
    slot.import_failed(2)
    slot.ended(2, "exit code 1")
    assert told(slot.saved("r1")) == ["shop: back to the code that runs (r1)"]
    slot.broken("shop.py:3: SyntaxError")
    slot.saved("r3")
    slot.registered(3)
    assert slot.saved("r3") == [], "new code has been told of"


def test_code_that_does_not_import_keeps_the_last_good_worker() -> None:
    slot = running()
    slot.saved("r2")
    slot.import_failed(2)
    said = slot.ended(2, "exit code 1")
    assert acts(said) == []
    assert "the last good code goes on" in troubles(said)[0]
    assert slot.current == 1
    assert acts(slot.saved("r3")) == [Start(3, "r3")]


def test_a_crash_is_answered_with_a_restart_that_waits_longer_each_time() -> None:
    slot = running()
    first = slot.ended(1, "by SIGKILL")
    assert acts(first) == [Start(2, "r1", 250)]
    assert "by SIGKILL" in troubles(first)[0]
    assert acts(slot.ended(2, "exit code 1")) == [Start(3, "r1", 500)]
    for key in range(3, 12):
        slot.ended(key, "exit code 1")
    assert acts(slot.ended(12, "exit code 1")) == [Start(13, "r1", 10_000)]
    slot.registered(13)
    assert acts(slot.ended(13, "exit code 1")) == [Start(14, "r1", 250)]


def test_a_crash_during_a_swap_leaves_the_new_code_on_its_way() -> None:
    slot = running()
    slot.saved("r2")
    assert acts(slot.ended(1, "by SIGSEGV")) == []
    assert acts(slot.registered(2)) == []
    assert slot.current == 2


def test_without_a_worker_a_failed_import_waits_for_a_save() -> None:
    slot = Slot("shop")
    slot.saved("r1")
    slot.import_failed(1)
    assert acts(slot.ended(1, "exit code 1")) == []
    assert acts(slot.saved("r1")) == [Start(2, "r1")]


def test_reconnecting_changes_nothing() -> None:
    slot = running()
    assert slot.registered(1) == []
    assert slot.current == 1
