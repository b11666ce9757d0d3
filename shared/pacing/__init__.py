"""When the API may be called: the rate budget, the pauses, and the time of the next poll."""
