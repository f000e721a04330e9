// The whole library as one translation unit, which compiles faster than its parts.
#include "copies.cpp"
#include "devices.cpp"
#include "host_memory.cpp"
#include "kernels.cpp"
#include "memory.cpp"
#include "pinned.cpp"
#include "streams.cpp"
#include "thread_pool.cpp"
