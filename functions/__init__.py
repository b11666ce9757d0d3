"""One room for each Lambda function; the only place that knows Lambda's events."""
