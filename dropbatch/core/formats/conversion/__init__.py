"""Other vendors' request bodies become Workers AI's: one table of members, then messages, tools and endpoints."""
