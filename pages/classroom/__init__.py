"""Classroom mode on the lecturer's screens: a room, what its students follow, questions and exercises."""
