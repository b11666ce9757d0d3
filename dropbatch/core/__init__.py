"""The rules that the library and the functions share: names, options, records, formats, prices."""
