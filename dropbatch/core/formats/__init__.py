"""Records in a user's own shape become requests; answers are written in that shape. Pure."""
