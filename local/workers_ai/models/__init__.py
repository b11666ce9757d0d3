"""The models: which there are, what each accepts, and what it answers."""
