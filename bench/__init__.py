"""Measurements of the two hot steps, each beside a baseline in the same run. Nothing of the product imports this."""
