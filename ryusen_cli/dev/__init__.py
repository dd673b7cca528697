"""Local processes: how server and workers are started, watched, replaced and ended.

`swap` decides, `sources` reads, `supervisor` does. `child` is what a started process runs.
"""
