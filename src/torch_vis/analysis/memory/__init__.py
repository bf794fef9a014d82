"""Where the memory of a run goes: what is alive when and why, what checkpointing would save, what allocators add.

Everything here is worked out from lifetimes in the graph, so it holds for a run that computed numbers and for one that
only followed shapes. A block of memory counts from the operation that makes it up to and including the last
operation before which it is still there; what came from outside counts from the start.
"""
