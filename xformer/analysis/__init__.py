"""What can be said about a run in numbers: traces in, DataFrames out."""
