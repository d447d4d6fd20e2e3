"""The model doctor: does any model do what its kind of model must do, and if not, at which layer, head and cell?

    subject.py     a model of any kind, called in one way: tokens, padding, positions, cache
    check.py       what a check is, and the pair of runs that should agree
    checks/        the checks, by what they change in the input
    localise.py    where two runs that should agree part
    diagnosis.py   `diagnose` runs the checks; `Diagnosis` is what they found

The equations of a model of xformer are checked step by step in `xformer.diagnosis`.
"""
