"""The interfaces the engine stands on: a store, a clock, a worker's channel. Implemented above and beside it, wired by `bootstrap`."""
