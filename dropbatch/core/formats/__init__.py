"""Formats of uploads.

Records in a user's own shape become requests, and answers are written in that shape.

Pure: no module here knows S3, the ledger or HTTP. `base` holds the interface, `registry` the table
of formats. The native format's module only adds a job's defaults: without them, its records are
sent as they are.
"""
