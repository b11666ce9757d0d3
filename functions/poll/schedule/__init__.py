"""When something is done: ticks, what is due, visits, pauses, users' commands, early ends."""
