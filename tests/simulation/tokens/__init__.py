"""Simulated worlds of a stack with several API tokens.

What happens to them, and what must hold of each.
"""
