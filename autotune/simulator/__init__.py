"""A node without GPUs, for every engine's own command line.

node/                 `simulate`: memory plan, step time, batching
fit/                  `autotune calibrate`: measurements to the simulator's figures
emulator/             the same node behind HTTP, by the wall clock
resolve_command       a command line to the server that it starts
prediction_intervals  how sure a prediction is
"""
