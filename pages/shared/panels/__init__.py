"""The panels of the screens: each asks, computes through a cache, draws, and says what the picture shows."""
