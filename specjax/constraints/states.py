"""Tables [Q, C] of states: what is reached, and what is the same.

An entry is the state that a symbol leads to, negative where none. Texts begin
in state 0. The last column is the end of a text: it leads from accepting states
to one state, which it leads to itself.
"""

import numpy as np

from specjax.sampling.automaton import distance, edges

# Entries that merging reads at most, over all its rounds.
_PATIENCE = 2 * 10**8


def columns(table: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """Different columns of a table, and which of them each column is."""
  different, which = np.unique(table, axis=1, return_inverse=True)
  return different, which.reshape(-1)


def trim(table: np.ndarray) -> np.ndarray | None:
  """Without states that no text reaches, or that no text leaves to its end.

  State 0 stays the first, or None where no text has an end.
  """
  from scipy.sparse import csgraph

  end = int(table[:, -1].max())
  if end < 0:
    return None
  graph = edges(table)
  order = csgraph.breadth_first_order(graph, 0, return_predecessors=False)
  ending = np.zeros(len(table), bool)
  back = graph.T.tocsr()
  ending[csgraph.breadth_first_order(back, end, return_predecessors=False)] = 1
  if not ending[0]:
    return None
  kept = order[ending[order]]
  places = np.full(len(table) + 1, -1, table.dtype)
  places[kept] = np.arange(len(kept))
  return places[table[kept]]


def merge(table: np.ndarray) -> np.ndarray:
  """One state of those that the same texts lead to the end (Moore, 1956).

  Groups are split while states of one group lead to different groups. A table
  that would take long is returned as it is.
  """
  draws = np.random.default_rng(0)
  states, symbols = table.shape
  factors = draws.integers(1, 2**63, symbols, np.uint64) | np.uint64(1)
  # Equal states are as far from the end, which is no part of what ends there.
  groups = distance(table, int(table[:, -1].max())).astype(np.int64)
  count = 0
  for _ in range(_PATIENCE // table.size + 1):
    names = draws.integers(1, 2**63, states + 1, np.uint64)
    named = np.append(names[groups], names[states])  # The last: nowhere.
    marks = (named[table] * factors).sum(1) + named[:-1]
    _, firsts, groups = np.unique(marks, True, True)
    if len(firsts) in (count, states):
      break
    count = len(firsts)
  else:
    return table
  order = np.argsort(firsts)  # State 0 stays the first.
  places = np.empty(len(order), table.dtype)
  places[order] = np.arange(len(order))
  groups, firsts = places[groups], firsts[order]
  leads = np.append(groups, -1)[table]
  if (leads != leads[firsts][groups]).any():  # Two marks were equal by chance.
    return table
  return leads[firsts]
