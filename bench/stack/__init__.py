"""Measurements of the deployed stack on a local AWS: `python -m bench.stack`."""
