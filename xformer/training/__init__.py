"""Training: the loop for one model, the loop for many models at once, the run store, and its worker processes."""
