"""Rooms in which a class follows a lecturer: what is shown, questions with votes, and exercises that are solved."""
