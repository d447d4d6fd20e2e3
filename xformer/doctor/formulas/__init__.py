"""The formulas that a model computes, read from the operations of its own code, with the line of each part.

formula.py        a part of a formula, and the names of what is unusual
numbers.py        the constants in the operations
flow.py           which operations read a value, and what changes no number
attention.py      the scale, the mask, the softmax and the projections of one attention
heads.py          how it splits and merges its heads
rotary.py         the rotations of queries and keys
norms.py          the norms, fused or written out
block.py          the norms and residuals of sub-layers, and what a feed-forward network computes
positions.py      positions that are added to the embeddings or the scores, or missing
read.py           `formulas` reads all parts of a run
specification.py  `against` compares them with a well-known architecture
"""

from xformer.doctor.formulas.formula import BREAKS_A_RULE, CAUSES_OF_FORMULAS, Formula
from xformer.doctor.formulas.read import formulas
from xformer.doctor.formulas.specification import ARCHITECTURES, against, unread

__all__ = ["ARCHITECTURES", "BREAKS_A_RULE", "CAUSES_OF_FORMULAS", "Formula", "against", "formulas", "unread"]
