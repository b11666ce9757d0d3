"""Each condition is dropped or shifted in turn; a test must fail."""
