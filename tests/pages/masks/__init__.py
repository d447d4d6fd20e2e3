"""Tests of the screen Masks."""
