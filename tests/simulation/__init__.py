"""The simulated world.

The real functions on simulated AWS and a simulated API, on one clock, decided by a seed.
"""
