"""Heads for the embedded target: the recipes of those that ship, and others.

  specjax train heads:eagle3

A part for each head; `specjax train own_head` is for a target of your own. A
head is runs/PART/weights, and what it accepted at each checkpoint is
runs/PART/head.jsonl. Half of the windows are the target's own text, taken from
runs/embedded_pair if `configs/embedded_pair.py` left it there, and written
otherwise. `--quick` shows that a recipe runs.

  eagle1        EAGLE 1 (Li et al., arXiv:2401.15077): one layer that predicts
                the next feature of the target's last layer, trained with noise
                on what it reads
  eagle3        EAGLE 3 (Li et al., arXiv:2503.01840): one layer over features
                of three layers of the target, trained on tokens alone, five
                steps on its own features. It begins with the target's own
                logits, on the 256 directions that these depend on most
                (`specjax/drafters/eagle/start.py`): after 160 small steps (4
                windows of 128 tokens) alpha was 0.53 and 0.59 at T = 0 and 1,
                and 0.49 and 0.56 where it began with random weights
  eagle3_pair   the same in the form that others publish: the layer's attention
                reads token and feature side by side, and the head is as wide as
                its target. `specjax export` writes it for vLLM and SGLang.
                Nothing was measured with it so far
  medusa        Medusa (Cai et al., arXiv:2401.10774): four heads, each a
                residual block, read by the target's own output layer. How often
                their guesses are right is counted in texts that the target
                writes after held-out prompts, and stored in config.json for the
                static tree
  dflash        DFlash (Chen et al., arXiv:2602.06036): one layer that fills a
                block of masks in one pass, on features of three layers of the
                target, through the target's own embedding and output layer.
                Blocks are of eight tokens, the last committed one and seven
                masks; 32 of them are learned from in every window. Its guesses
                are counted as those of Medusa
  early_exit_1  the first layer drafts, and a norm and a low-rank adapter of its
                own stand before the target's output layer (as LayerSkip,
                arXiv:2404.16710, and Kangaroo, arXiv:2404.18911; the target
                stays as it is)
  early_exit_2  the same after two layers

At the end of training, on 12 held-out prompts of three domains, with token
verification and 48 new tokens, K = 4 (dflash: 7):

                tau at T = 0, 1   minutes by the clock, of processor time
  eagle1        2.68, 2.58        5, 8 (*)
  eagle3        3.24, 3.13        32, 58 (+)
  medusa        1.59, 1.54        6, 9 (*)
  dflash        2.23, 1.98        36, 60 (+)
  early_exit_1  1.77, 2.13        1 (*)
  early_exit_2  2.22, 2.36        1 (*)

on two cores, Python 3.11.7, beside other work: (*) AMD EPYC (Zen 4), (+) Intel
Xeon (AVX-512). alpha of eagle3 was 0.79 and 0.77, and tau 2.30, 2.53 and 3.10
at T = 0 after 200, 400 and 1,000 steps; the head before it, of 500 steps from
random weights, had tau 2.76 and 2.67. alpha of dflash was 0.73 and 0.67; after
1,000 steps of a shorter schedule alpha 0.66 and 0.64, tau 2.01 and 1.88.
"""

from typing import Any

from specjax import pair
from specjax.drafters.eagle.module import PAIR
from specjax.errors import need
from specjax.training.recipes import Heads, Optimization

_EAGLE3 = 'eagle', {'version': 3, 'start': 'target'}, (25, 2e-3), 1200, 200
# Trainable, options, end of the warm-up, steps, steps between checkpoints.
PARTS: dict[str, tuple[str, dict[str, Any], tuple[int, float], int, int]] = {
  'eagle1': ('eagle', {'version': 1}, (25, 2e-3), 500, 250),
  'eagle3': _EAGLE3,
  'eagle3_pair': (
    'eagle',
    {'version': 3, 'join': PAIR, 'width': 512, 'mlp_width': 1024},
    *_EAGLE3[2:],
  ),
  'medusa': ('medusa', {'count': 4}, (25, 2e-3), 400, 200),
  'dflash': ('dflash', {'block': 8, 'layers': 1}, (50, 4e-3), 3000, 250),
  'early_exit_1': ('early_exit', {'layers': 1}, (25, 2e-3), 150, 75),
  'early_exit_2': ('early_exit', {'layers': 2}, (25, 2e-3), 150, 75),
}


def get_config(part: str = 'eagle3') -> Heads:
  need(part in PARTS, f'the parts are {", ".join(PARTS)}, got {part!r}')
  trainable, options, warm, steps, every = PARTS[part]
  return Heads(
    folder=f'runs/{part}',
    target=pair.path('target'),
    trainable=trainable,
    options=dict(options),
    optimization=Optimization(
      schedule=(warm, (steps, 0.0)),
      batch=8,
      checkpoint_every=every,
      muon=part == 'dflash',
    ),
    data='runs/embedded_pair',
  )
