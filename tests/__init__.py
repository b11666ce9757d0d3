"""The tests of Dropbatch."""
