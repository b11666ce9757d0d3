"""What journeys work with: the whole Dropbatch in one process, and what may happen to it."""
