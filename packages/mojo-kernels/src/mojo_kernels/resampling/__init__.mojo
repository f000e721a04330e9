"""Resampling and padding: outputs that are weighted sums of inputs, axis by axis."""
