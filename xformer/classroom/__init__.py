"""Rooms in which a class follows a lecturer's screen, votes on questions, and solves exercises."""
