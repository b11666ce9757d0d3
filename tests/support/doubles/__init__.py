"""Single modules between doubles: what they read and write is in memory."""
