"""Code that both functions use. It imports neither of them."""
