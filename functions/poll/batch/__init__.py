"""One batch after it was accepted.

Poll it, isolate refused records, collect and join its answers.
"""
