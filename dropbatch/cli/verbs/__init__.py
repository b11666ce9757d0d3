"""The subcommands: their arguments and what they print.

What they do is in the modules of the parent package.

Modules are imported inside the functions that need them, so that `dropbatch --help` takes only a
tenth of a second.
"""
