"""What all visitors share: models, runs, caches and pictures."""
