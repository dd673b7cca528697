"""Failing networks from a seed: `python -m tests.network --cases 2000`, half of them over each transport."""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from pathlib import Path
from typing import get_args

from tests.network.campaign import Campaign, Transport


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--cases", type=int, default=2_000)
    options.add_argument("--seed", type=int, default=1)
    given = options.parse_args()
    for transport in get_args(Transport):
        began = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            report = asyncio.run(Campaign(transport, given.cases // 2, given.seed).run(Path(folder)))
        struck = ", ".join(f"{count} {fault}" for fault, count in sorted(report.struck.items()))
        fates = ", ".join(f"{count} {fate}" for fate, count in sorted(report.fates.items()))
        print(f"{transport}: {report.cases} cases in {report.runs} runs, {time.monotonic() - began:.0f} s")
        print(f"  struck: {struck}; refused {report.refused} times")
        print(f"  attempts: {fates}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
