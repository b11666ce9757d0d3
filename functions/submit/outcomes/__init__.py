"""What follows from submits that were not simply accepted or refused."""
