"""Training: the loop, many models at once, the run store, and the worker processes that train its runs."""
