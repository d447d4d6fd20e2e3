"""The model doctor: checks the invariants that any transformer must satisfy, and locates violations by layer, head and cell.

    subject.py     a uniform interface to any model: tokens, padding, positions, cache
    check.py       checks, findings, and pairs of runs that should agree
    checks/        the checks, grouped by what they vary
    localise.py    where two runs that should agree first differ
    diagnosis.py   `diagnose` runs the checks and returns a `Diagnosis`

`xformer.diagnosis` checks the equations of an xformer model step by step.
"""
