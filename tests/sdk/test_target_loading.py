"""TARGET: one object found, or an error that names the place and the fix. Each case runs in a process of its own, as a worker does."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
APP = "from ryusen_sdk import Ryusen\napp = Ryusen('shop')\n"

PROBE = """
import sys
sys.path.append(sys.argv[2])
from ryusen_sdk.target import load_target
from ryusen_sdk import TargetError
try:
    print(load_target(sys.argv[1]))
except TargetError as error:
    print("refused:", error)
"""


def load(folder: Path, target: str) -> str:
    done = subprocess.run(
        [sys.executable, "-I", "-c", PROBE, target, str(ROOT)], cwd=folder, capture_output=True, text=True, check=False, timeout=30
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def write(folder: Path, files: dict[str, str]) -> None:
    for name, source in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(source)


@pytest.mark.parametrize(
    ("files", "target"),
    [
        ({"shop.py": APP}, "shop"),
        ({"shop.py": APP}, "shop:app"),
        ({"shop.py": APP}, "shop.py"),
        ({"pkg/__init__.py": "", "pkg/shop.py": APP}, "pkg.shop"),
        ({"pkg/__init__.py": "", "pkg/base.py": APP, "pkg/shop.py": "from .base import app\n"}, "pkg/shop.py"),
        ({"src/shop.py": "import prices\n" + APP, "src/prices.py": ""}, "src/shop.py"),
        ({"my-shop.py": APP}, "my-shop.py"),
        ({"shop.py": APP + "alias = app\n"}, "shop"),
        ({"shop.py": APP + "second = Ryusen('other')\n"}, "shop:app"),
        ({"shop.py": APP + "class Holder: inner = app\n"}, "shop:Holder.inner"),
    ],
)
def test_a_target_that_loads(tmp_path: Path, files: dict[str, str], target: str) -> None:
    write(tmp_path, files)
    assert load(tmp_path, target) == "<Ryusen default/shop>"


@pytest.mark.parametrize(
    ("files", "target", "told"),
    [
        ({}, "shop", ["no module 'shop'", sys.executable, "shop.py"]),
        ({}, "shop.py", ["there is no file shop.py"]),
        ({"pkg/x.py": ""}, "pkg/", ["folder"]),
        ({"shop.py": "import nowhere_at_all\n"}, "shop", ["shop.py:1", "nowhere_at_all", sys.executable]),
        ({"shop.py": "x = 1\n\n1 / 0\n"}, "shop", ["shop.py:3", "ZeroDivisionError"]),
        ({"shop.py": "def f(:\n"}, "shop", ["shop.py:1", "SyntaxError"]),
        ({"my-shop.py": "1 / 0\n"}, "my-shop.py", ["my-shop.py:1", "ZeroDivisionError"]),
        ({"shop.py": "raise SystemExit(3)\n"}, "shop", ["shop.py:1", "SystemExit"]),
        ({"shop.py": "x = 1\n"}, "shop", ["has no Ryusen object", 'Ryusen("shop")']),
        ({"shop.py": APP + "b = Ryusen('b')\n"}, "shop", ["several", "shop:app"]),
        ({"shop.py": APP}, "shop:other", ["nothing named 'other'", "app"]),
        ({"shop.py": APP + "other = 5\n"}, "shop:other", ["is int, not a Ryusen object"]),
        ({"shop.py": APP.replace("'shop'", "'shop', include=['gone']")}, "shop", ["included by shop", "gone"]),
        ({}, ":app", ["no target"]),
    ],
)
def test_a_target_that_does_not_load_is_told(tmp_path: Path, files: dict[str, str], target: str, told: list[str]) -> None:
    write(tmp_path, files)
    answer = load(tmp_path, target)
    assert answer.startswith("refused:")
    for part in told:
        assert part in answer


def test_importing_the_sdk_brings_no_sockets() -> None:
    probe = (
        "import sys; import ryusen_sdk; print([m for m in ('websockets', 'httpx', 'asyncio', 'ssl', 'http.client') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", probe], cwd=ROOT, capture_output=True, text=True, check=True, timeout=30)
    assert done.stdout.strip() == "[]"


@pytest.mark.req("SDK-13")
def test_the_sdk_imports_nothing_of_the_server() -> None:
    probe = (
        "import sys, ryusen_sdk.worker, ryusen_sdk.client, ryusen_sdk.target; "
        "print([m for m in sys.modules if m.startswith(('ryusen_server', 'sanic', 'aiosqlite', 'ryusen_cli'))])"
    )
    done = subprocess.run([sys.executable, "-c", probe], cwd=ROOT, capture_output=True, text=True, check=True, timeout=30)
    assert done.stdout.strip() == "[]"
