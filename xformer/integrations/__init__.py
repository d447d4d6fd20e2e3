"""Other people's training loops around our models; each needs a package of its own, see the extras in pyproject.toml."""
