"""The same work many times over: on the cores of one machine, or on many machines."""
