"""`python -m ryusen_cli`: the same as `ryusen`."""

from ryusen_cli.main import run

if __name__ == "__main__":
    run()
