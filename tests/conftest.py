"""What every test needs before anything of Dropbatch is imported: the variables that Powertools reads at import."""

import os

from tests.template import template

os.environ |= {
    name: value
    for name, value in template()["Globals"]["Function"]["Environment"]["Variables"].items()
    if name.startswith("POWERTOOLS_") and isinstance(value, str)
} | {"POWERTOOLS_SERVICE_NAME": "dropbatch"}
