"""`python -m tests.tui FILE.svg`: a picture of the dashboard, of a real server with real runs, that needs nothing from elsewhere."""

from __future__ import annotations

import asyncio
import re
import sys
import tempfile
from pathlib import Path

from tests.tui.stage import dashboard, stage

SIZE = (100, 14)


def alone(svg: str) -> str:
    """The picture without the fonts that it would fetch, and without who drew it; the reader's own font is of one width too."""
    for spoilt, mended in ((r"\s*@font-face \{.*?\}", ""), (r"\s*<!--.*?-->", ""), (r"Fira Code(, monospace)?", "monospace")):
        svg = re.sub(spoilt, mended, svg, flags=re.DOTALL)
    return svg


async def picture(url: str) -> str:
    async with dashboard(url, size=SIZE) as driven:
        await driven.sees("live", "workers 1", "Failed", "Succeeded", "Unknown 1", "blocked 1", "0s")
        return alone(driven.app.export_screenshot(title="ryusen dev --tui"))


def main(target: Path) -> None:
    with tempfile.TemporaryDirectory() as folder, stage(Path(folder)) as made:
        made.ended(made.run_of("order/placed", {"order": 1}))
        blocked = made.run_of("twice", {})
        made.until(blocked, lambda run: run["blocker"] is not None)
        made.run_of("nap", {})
        made.make_unknown("picture")
        made.ended(made.run_of("order/placed", {"fail": "no carrier takes order 8"}))
        target.write_text(asyncio.run(picture(made.url)), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
