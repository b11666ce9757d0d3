"""The command `dropbatch`: verbs over the client, their arguments and what they print."""
