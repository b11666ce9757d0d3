"""The simulated world: the real functions on simulated AWS and a simulated API, on one clock, decided by a seed."""
