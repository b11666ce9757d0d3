"""Measurements, each beside a baseline in the same run. Nothing of the product imports this.

Powertools reads its variables when it is imported, so they are set before anything else.
"""

import os

from local.template import powertools_variables

os.environ |= powertools_variables()
