"""curator's batch mode against `dropbatch serve`: prints how many answers came back.

Usage: curator_serves.py BASE_URL MODEL
"""

import json
import os
import sys
import tempfile

os.environ |= {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "TELEMETRY_ENABLED": "false", "CURATOR_VIEWER": "0"}
os.environ |= {"CURATOR_CACHE_DIR": tempfile.mkdtemp(), "CURATOR_DISABLE_RICH_DISPLAY": "1", "OPENAI_API_KEY": "none"}

from bespokelabs import curator


def main(url: str, model: str) -> None:
    """Run one batch to its end."""
    settings = {"base_url": url, "batch_check_interval": 1, "require_all_responses": True}
    ai = curator.LLM(model_name=model, backend="openai", batch=True, backend_params=settings)
    done = ai(["Hello 0", "Hello 1", "Hello 2"])
    rows = list(done.dataset if hasattr(done, "dataset") else done)
    print(json.dumps({"answers": sum("Hello" in row["response"] for row in rows)}))


main(*sys.argv[1:])
