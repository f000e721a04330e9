"""Normalization layers. This file imports nothing; import the modules."""
