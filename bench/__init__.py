"""Measurements, each compared with a baseline in the same run.

No product code imports this package.

Powertools reads its environment variables when it is imported, so they are set before anything
else.
"""

import os

from local.template import powertools_variables

os.environ |= powertools_variables()
