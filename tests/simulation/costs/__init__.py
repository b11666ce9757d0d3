"""Simulated worlds in which jobs and stacks have less money than they need."""
