"""Programs, and what they are made of."""

import os

# Without torch transformers says at its import that models are missing; only
# its tokenizers are used.
os.environ.setdefault('TRANSFORMERS_NO_ADVISORY_WARNINGS', '1')
