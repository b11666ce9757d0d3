"""When to poll a batch.

Ways compared on a simulated clock, and the polls counted on the local stack.
"""
