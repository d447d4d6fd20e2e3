"""The formulas that a model computes, read from the operations of its own code, with the line of each part.

formula.py    a part of a formula, and the names of what is unusual
numbers.py    the constants in the operations
attention.py  the scale, the mask, the projections and the heads of one attention
positions.py  positions that are added to the embeddings
read.py       `formulas` reads all parts of a run
"""

from xformer.doctor.formulas.formula import BREAKS_A_RULE, CAUSES_OF_FORMULAS, Formula
from xformer.doctor.formulas.read import formulas

__all__ = ["BREAKS_A_RULE", "CAUSES_OF_FORMULAS", "Formula", "formulas"]
