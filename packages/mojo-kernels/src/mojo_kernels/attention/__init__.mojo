"""Scaled dot-product attention, forward and backward, without storing the scores."""
