"""The Workers AI batch API: its HTTP client, its replies as data, and the table of its error codes."""
