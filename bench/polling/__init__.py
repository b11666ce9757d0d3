"""When to poll a batch: ways compared on a simulated clock, and the polls counted on the local stack."""
