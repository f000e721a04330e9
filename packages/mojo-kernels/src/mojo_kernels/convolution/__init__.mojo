"""Convolutions of one to three spatial dimensions and their gradients."""
