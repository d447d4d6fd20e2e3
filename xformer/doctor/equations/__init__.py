"""Step-by-step diagnosis of xformer models: recompute every equation of a trace, and name known mistakes."""
