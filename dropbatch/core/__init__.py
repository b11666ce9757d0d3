"""The rules that the library and the functions share: keys, options, records, formats, prices.

They call no service.
"""
