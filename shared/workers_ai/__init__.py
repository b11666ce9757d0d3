"""The Workers AI batch API.

Its HTTP client, its replies as data, and the table of its error codes.
"""
