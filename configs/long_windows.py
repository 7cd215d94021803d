"""What a target accepts of its own drafts from a window, at long contexts.

  python -m experiments.train --config configs/long_target.py
  python -m experiments.run --config configs/long_windows.py

Prompts of 3,200 held-out tokens, and drafts of the target's own weights that
see its last 64 to 1,024 tokens, with and without the first four; the last one
sees all and is always accepted. Only counts are taken, in batches: no time, so
the machine may do other things; some minutes on two cores.
"""

from specjax.bench.config import Candidate, Checkpoint, Experiment, Prompts

WINDOWS = (64, 128, 256, 512, 1024)
SINKS = (0, 4)


def get_config() -> Experiment:
  candidates = {
    f'window {window}{f" + {sinks}" if sinks else ""}': Candidate(
      'windowed', 2, options={'window': window, 'sinks': sinks}
    )
    for window in WINDOWS
    for sinks in SINKS
  }
  whole = {'window': 4096, 'sinks': 0}
  candidates['all'] = Candidate('windowed', 2, options=whole)
  return Experiment(
    name='long_windows',
    target=Checkpoint('runs/long_target/pair/target'),
    candidates=candidates,
    prompts=Prompts(count=12, length=3200),
    temperatures=(1.0,),
    verifiers=('token',),
    max_new_tokens=64,
    batch=2,
    timed=False,
  )
