"""Generic addresses: each space but the global one has a window of 2^32 bytes at a fixed address."""

SHARED_WINDOW = 0x0100_0000_0000_0000
LOCAL_WINDOW = 0x0200_0000_0000_0000
PARAMETER_WINDOW = 0x0300_0000_0000_0000
WINDOW_SIZE = 1 << 32
WINDOW_SHIFT = 56
