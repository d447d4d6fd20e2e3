"""Tests of the model doctor."""
