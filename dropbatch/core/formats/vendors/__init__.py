"""Other vendors' formats: one module for each, with the objects that it reads and writes."""
