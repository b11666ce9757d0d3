"""The verbs: their arguments and what they print. What they do is in the modules above.

Modules are imported inside the functions that need them: `dropbatch --help` then takes a tenth of a second.
"""
