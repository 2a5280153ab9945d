"""What every test of ModelService runs under."""

import os

# litellm fetches its price list from the network when it is imported, unless told otherwise.
os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
