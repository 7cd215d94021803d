"""What a target accepts of its own drafts from a window, at long contexts.

  specjax train configs/long_windows.py:target
  specjax run configs/long_windows.py

The embedded pair ends at 512 positions, where no window of a draft shows. The
first command trains a small target with 4,096 positions, of which nothing is
shipped: two layers x 192, 1.7M parameters, by Muon on 4.3M tokens of the
library; every fourth batch is one window of all positions. Half an hour on two
idle cores; a run that was stopped resumes with the same command.

The second command takes prompts of 3,200 held-out tokens, and drafts of the
target's own weights that see its last 64 to 1,024 tokens, with and without the
first four; the last draft sees all and is always accepted. No time is taken, so
the machine may do other things; some minutes on two cores.
"""

from specjax.bench import config
from specjax.training.recipes import Optimization, Recipe

WINDOWS = (64, 128, 256, 512, 1024)
SINKS = (0, 4)


def get_config(part: str = '') -> config.Experiment | Recipe:
  return target() if part == 'target' else windows()


def target() -> Recipe:
  return Recipe(
    folder='runs/long_target',
    vocab_size=2048,
    target=config.Size(
      width=192,
      num_layers=2,
      num_heads=4,
      num_kv_heads=2,
      head_dim=48,
      mlp_width=576,
    ),
    target_training=Optimization(
      schedule=((50, 6e-3), (650, 6e-3), (1050, 0.0)),
      batch=2,
      length=2048,
      checkpoint_every=50,
      muon=True,
    ),
    drafts=None,
    max_positions=4096,
  )


def windows() -> config.Experiment:
  candidates = {
    f'window {window}{f" + {sinks}" if sinks else ""}': config.Candidate(
      'windowed', 2, options={'window': window, 'sinks': sinks}
    )
    for window in WINDOWS
    for sinks in SINKS
  }
  whole = {'window': 4096, 'sinks': 0}
  candidates['all'] = config.Candidate('windowed', 2, options=whole)
  return config.Experiment(
    name='long_windows',
    target=config.Checkpoint('runs/long_target/pair/target'),
    candidates=candidates,
    prompts=config.Prompts(count=12, length=3200),
    temperatures=(1.0,),
    verifiers=('token',),
    max_new_tokens=64,
    batch=2,
    timed=False,
  )
