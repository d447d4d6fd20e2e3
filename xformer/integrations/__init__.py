"""Callbacks for other training loops. Each needs its own package; see the extras in pyproject.toml."""
