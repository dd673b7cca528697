"""Tests for workflows: the real engine and the real worker on a virtual clock, offline, in milliseconds a run.

```python
async def test_an_order_that_cannot_ship_is_refunded() -> None:
    async with Harness(app) as harness:
        harness.fail("ship", Terminal("no carrier"))
        run = await harness.send("order/placed", {"id": 7})
        assert (run.outcome, run.recovery) == ("failed", "fully_compensated")
```
"""

from ryusen_testing.errors import BodyDiffers, HarnessError, NoTrigger, Refused, RunIsStuck, StillRunning
from ryusen_testing.harness import Harness, at_every_crash
from ryusen_testing.run import HarnessRun
from ryusen_testing.states import AttemptState, StepState, UndoneStep
from ryusen_testing.sync import SyncHarness, SyncRun, harness_fixture, sync_harness_fixture
from ryusen_testing.watching import Call

__all__ = [
    "AttemptState",
    "BodyDiffers",
    "Call",
    "Harness",
    "HarnessError",
    "HarnessRun",
    "NoTrigger",
    "Refused",
    "RunIsStuck",
    "StepState",
    "StillRunning",
    "SyncHarness",
    "SyncRun",
    "UndoneStep",
    "at_every_crash",
    "harness_fixture",
    "sync_harness_fixture",
]
