"""What the tests share. Nothing here is a test."""
