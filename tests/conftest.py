"""Four CPU devices for every test, and the compilation cache."""

from metaevo import runtime

runtime.configure(num_cpu_devices=4)
