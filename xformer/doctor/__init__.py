"""The model doctor: checks the invariants that any transformer must satisfy, and locates violations by layer, head and cell.

token_model.py  a uniform interface to any model: tokens, padding, positions, cache
check.py        checks, findings, and pairs of runs that should agree
checks/         the checks, grouped by what they vary
localise.py     where two runs that should agree first differ
diagnose.py     `diagnose` runs the checks and returns a `Diagnosis`
equations/      the equations of an xformer model, recomputed step by step
faults/         typical bugs, each in a copy of a correct model
"""
