"""Code that the tests share. Nothing here is a test."""
