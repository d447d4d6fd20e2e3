"""Models that somebody else built, read where they stand: their attention, stream and neurons under our names."""
