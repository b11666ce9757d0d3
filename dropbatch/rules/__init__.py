"""The rules that the client and the functions share: names, options, limits, prices. They call no service."""
