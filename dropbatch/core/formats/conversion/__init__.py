"""Other vendors' request bodies become Workers AI's.

One table of members, then messages, tools and endpoints.
"""
