"""The fault campaign: everything that can happen to a run, tried, and whether anything was lost. `make faults` runs all of it.

zygote     a process that has torch in memory and forks workers and servers from it, a hundred faults a minute
disk       calls to the disk that are counted, refused, or are the last thing that a process does
mischief   what else is done to a process: hanging
ground     a run store with a tiny run, what an undisturbed one ends in, and the comparison bit for bit
…_faults   the faults themselves; each raises where a run does not survive
"""
