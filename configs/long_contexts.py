"""Steps at 512 to 32,768 tokens of context, plain and with drafts.

  python -m experiments.long_contexts --config configs/long_contexts.py

A Llama of 4 layers x 512 with random weights, 58 MB a step and 8 KB of cache a
token, whose cache outweighs its weights from some 7,000 tokens on at batch 1
and from 1,800 at batch 4. It drafts from a window of 512 tokens of its own
cache; beside it a draft of one layer x 128 that reads the whole text. Float32;
5 GB of memory, and less than two minutes on two idle cores where the kernel
attends, eight without it.
"""

from specjax.bench.config import LongContexts, Size, TargetSize


def get_config() -> LongContexts:
  return LongContexts(
    name='long_contexts',
    target=TargetSize(512, 4, 8, 4, 64, 1536, vocab_size=4096),
    draft=Size(128, 1, 2, 1, 64, 384),
  )
