"""What Prometheus reads, with the names of vLLM; it has no `specjax:` ones."""

from typing import TYPE_CHECKING

import numpy as np

from specjax.types import Counts

if TYPE_CHECKING:
  import prometheus_client


class Counters:
  """The numbers of one service; any thread may write them."""

  def __init__(self, model: str, depth: int):
    """Takes the name of the model, and the most tokens of a draft."""
    import prometheus_client as prometheus

    self._prometheus = prometheus
    self._registry = prometheus.CollectorRegistry()
    self._model, self._depth = model, depth
    count, gauge = prometheus.Counter, prometheus.Gauge
    spec = 'spec_decode_num'
    self.running = self._make(
      gauge, 'num_requests_running', 'Texts that have a row.'
    )
    self.waiting = self._make(
      gauge, 'num_requests_waiting', 'Texts that wait for a row.'
    )
    self._success = self._vary(
      'request_success', 'Texts that ended, by how.', 'finished_reason'
    )
    self._refused = self._vary(
      'specjax:request_refused',
      'Requests that were refused, by status.',
      'status',
    )
    self.cancelled = self._make(
      count, 'specjax:request_cancelled', 'Texts whose reader went away.'
    )
    self.prompts = self._make(
      count, 'prompt_tokens', 'Tokens read, for each answer.'
    )
    self.generated = self._make(count, 'generation_tokens', 'Tokens told.')
    self._drafts = self._make(
      count, f'{spec}_drafts', 'Steps whose draft was verified.'
    )
    self._drafted = self._make(
      count, f'{spec}_draft_tokens', 'Tokens that were drafted.'
    )
    self._accepted = self._make(
      count, f'{spec}_accepted_tokens', 'Drafted tokens that were accepted.'
    )
    self._places = self._vary(
      f'{spec}_accepted_tokens_per_pos',
      'The same by their place in the draft.',
      'position',
    )
    for place in range(depth):
      self._places.labels(model, str(place))
    for reason in ('stop', 'length', 'error'):
      self._success.labels(model, reason)

  def _make(self, kind, name: str, about: str):
    made = kind(_full(name), about, ['model_name'], registry=self._registry)
    return made.labels(self._model)

  def _vary(
    self, name: str, about: str, label: str
  ) -> 'prometheus_client.Counter':
    return self._prometheus.Counter(
      _full(name), about, ['model_name', label], registry=self._registry
    )

  def finish(self, reason: str) -> None:
    self._success.labels(self._model, reason).inc()

  def refuse(self, status: int) -> None:
    self._refused.labels(self._model, str(status)).inc()

  def speculate(self, counts: Counts, before: Counts | None) -> None:
    """Adds what a turn did to a text, of whole steps."""
    old = before and before.accepted
    accepted = counts.accepted - (0 if old is None else old)
    steps = counts.histogram.sum() - (before.histogram.sum() if before else 0)
    drafted = counts.drafted - (before.drafted if before else 0)
    self._drafts.inc(int(steps))
    self._drafted.inc(int(drafted))
    self._accepted.inc(int(np.sum(accepted)))
    for place, number in enumerate(accepted.tolist()):
      if number:
        self._places.labels(self._model, str(place)).inc(number)

  def page(self) -> tuple[bytes, str]:
    """What is read, and its media type."""
    made = self._prometheus.generate_latest(self._registry)
    return made, self._prometheus.CONTENT_TYPE_LATEST


def _full(name: str) -> str:
  return name if ':' in name else f'vllm:{name}'
