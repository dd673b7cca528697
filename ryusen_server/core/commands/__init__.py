"""The commands a run obeys, one file each, its decision table in the docstring.

Every `decide` is a pure function of (run, command, moment). It reads the run and never changes it: what it decides takes effect when
`evolve` folds the records.
"""
