"""Operate: large and long worlds, what is measured in them, and the promises of speed."""
