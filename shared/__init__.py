"""What both functions use; knows no function."""
