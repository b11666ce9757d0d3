"""Other vendors' request bodies become Workers AI's: members, then messages, tools, endpoints."""
