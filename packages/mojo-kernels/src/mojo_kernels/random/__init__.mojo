"""Random numbers: Philox, distributions with CUDA's draw layout, dropout. Imports nothing."""
