"""Jobs that are looked at: many by one name, until they are over.

And what a terminal may show of them.
"""
