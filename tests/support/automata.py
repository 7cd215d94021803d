"""Automata that no text was compiled to."""

import numpy as np

from specjax.sampling import Automaton


def drawn(vocab, states, seed, eos, forced=0.3):
  """A random automaton of `states` before the one behind the end of a text.

  In a share `forced` of them one token is allowed, and in the others four
  besides an end.
  """
  random = np.random.default_rng(seed)
  inside = np.setdiff1d(np.arange(vocab), eos)
  moves = np.full((states + 1, vocab), -1, np.int16)
  for state in range(states):
    count = 1 if random.random() < forced else 4
    tokens = random.choice(inside, min(count, len(inside)), replace=False)
    moves[state, tokens] = random.integers(0, states, len(tokens))
    if state == states - 1:
      moves[state, list(eos)] = states
    else:  # No state is a dead end.
      moves[state, tokens[0]] = state + 1
      if count > 1 and random.random() < 0.2:
        moves[state, list(eos)] = states
  moves[states, list(eos)] = states
  return Automaton(
    f'automaton {seed}', np.arange(vocab, dtype=np.int16), moves, tuple(eos), ''
  )
