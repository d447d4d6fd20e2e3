"""Benchmarks of this package against peers. No test asserts these figures: timings vary between machines."""
