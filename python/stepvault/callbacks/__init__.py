"""Callbacks for frameworks, one module each, which imports its framework only when it is used itself.

None of them is needed: the agent finds finished steps by itself. They announce each save as soon as it is complete, so
that no quiet time is waited for, and pass its metrics. A fault of storage is a warning for the trainer, never an
exception.
"""
