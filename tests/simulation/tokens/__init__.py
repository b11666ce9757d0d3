"""Simulated worlds of a stack with several API tokens: what happens to them, and what must hold of each."""
