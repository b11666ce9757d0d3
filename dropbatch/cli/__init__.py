"""The command `dropbatch`: verbs over the client, their arguments and what they print.

Modules are imported inside the functions that need them, so that `dropbatch --help` takes only a
tenth of a second.
"""
