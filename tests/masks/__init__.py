"""Tests of `xformer.masks`."""
