"""Many prompts through a few rows: continuous batching.

A batch takes as long as its longest text. Here a row that has finished gets
the next prompt while the others go on (Yu et al. 2022, "Orca", OSDI, whose
unit is a step; here it is a chunk of a few, which is one dispatch, and ends
where a row has finished for which a prompt waits):

  row 0   a a a a a a | d d d d | f f f | f f f f     | between two chunks
  row 1   b b b b b b | b b b b | b b b | . . . .     . idle: no prompt is left
  row 2   c c c c c c | c c c c | c c c | g g g g

A prompt keeps its own key, values and limit, and its row's whole state is
written anew, so its text is the one it has alone. Those that may grow longest
begin first, so that few rows are idle when no prompt is left (Graham 1969,
"Bounds on multiprocessing timing anomalies"). Of those, prompts of about the
same length are read together: a group is padded to its longest.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from specjax import sampling
from specjax.arguments import check_number
from specjax.loop.buffers import plan_buffers
from specjax.requests.pool import Pool, Request
from specjax.types import Counts, Params, Spec


class Result(NamedTuple):
  """The text of one prompt, on the host."""

  prompt: int  # its index
  tokens: list[int]  # the new ones
  counts: Counts  # numpy, without the axis B
  finite: bool  # false: p or q was no number, and the text ended there


def decode(
  params: Params,
  prompts: Sequence[Sequence[int]],
  *,
  spec: Spec,
  new_tokens,
  key: jax.Array,
  values: sampling.Sampling,
  rows: int,
  chunk: int = 4,
  group: int = 4,
  slots: int | None = None,
  source_slots: int | None = None,
  **options: Any,
) -> Iterator[Result]:
  """Decodes prompts as rows become free, and yields each when it is done.

  Everything is checked at the call; decoding begins with the first result
  that is asked for. What is compiled does not depend on the number of
  prompts: the loop once, and reading for each size of a group.

  Args:
    params: of target and drafter.
    prompts: P lists of token ids, as for `generate.start`.
    spec: what to run.
    new_tokens: tokens to add to each prompt, a number or [P].
    key: [P] keys, see `generate.row_keys`.
    values: sampling values of P rows, see `sampling.make`.
    rows: B, texts that are decoded at a time.
    chunk: most steps between two looks at what has come. While prompts wait, a
      chunk ends where a row has finished; each costs one dispatch.
    group: prompts that are read at once, at most, while the others wait. It
      is memory for so many rows more.
    slots: size of the buffer; by default what the longest prompt needs.
    source_slots: size of the buffer of what an encoder reads.
    **options: `reads`, `policy` and `clock` of the pool, see `pool.Pool`.

  Returns:
    Results in the order in which they finish; `prompt` restores that of the
    prompts.

  Raises:
    ValueError: as `generate.start`, naming the prompt; rows, chunk or group
      below 1.
  """
  for name, number in (('rows', rows), ('chunk', chunk), ('group', group)):
    check_number(name, number, 1)
  planned = plan_buffers(
    spec, prompts, new_tokens, key, values, slots, source_slots
  )
  limits = np.broadcast_to(np.asarray(new_tokens), len(prompts))
  # Taken apart on the host: no program depends on the number of prompts.
  bits, impl = np.asarray(jax.random.key_data(key)), jax.random.key_impl(key)
  given = jax.device_get(values)

  def request(i: int) -> Request:
    own = jax.random.wrap_key_data(jnp.asarray(bits[i : i + 1]), impl=impl)
    return Request(prompts[i], limits[i], own, _row(given, i))

  def turns() -> Iterator[Result]:
    pool = Pool(
      params,
      spec=spec,
      values=_row(given, 0),
      rows=rows,
      slots=planned.slots,
      source_slots=planned.source_slots,
      group=group,
      **options,
    )
    sizes = np.array([len(prompt) for prompt in prompts])
    order = np.lexsort((-sizes, -limits)).tolist()
    for i in order:
      pool.submit(request(i))
    while pool.waiting or pool.live:
      for one in pool.turn(chunk, partial=False):
        yield Result(order[one.id], one.tokens, one.counts, one.finite)

  return turns()


def _row(values: sampling.Sampling, i: int) -> sampling.Sampling:
  return jax.tree.map(lambda x: x[i : i + 1], values)
