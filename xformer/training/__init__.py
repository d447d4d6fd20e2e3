"""Training: a generator of progress that a test, a script and the command line drive unchanged."""
