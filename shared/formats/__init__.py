"""Formats of uploads: records in a user's own shape become requests, and answers go back in that shape.

Pure: no module here knows S3, the ledger or HTTP. `base` holds the interface, `registry` the table of formats. The
native format has no module: its records are sent as they are.
"""
