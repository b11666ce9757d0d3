"""The API in memory, and tests that compare the simulated services with other implementations."""
