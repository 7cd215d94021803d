"""Our decoding against `generate` of transformers, on the same checkpoints.

  python -m experiments.against_huggingface \\
    --config configs/against_huggingface.py

Batch 1, all cores for either side, both in the same dtype and in one run: every
method decodes a prompt before the next prompt comes, in an order that rotates.
Times contain reading the prompt. Drafts are chosen for each method on prompts
that are not compared: the fastest one counts. Needs the extra `parity`.

plain_ratio     time of transformers' plain decoding (the faster of its two
                attentions) over ours
assisted_ratio  time of the faster of its two assisted variants over that of
                our language model draft
limit_ratio     our plain step over the time to read weights and cache once
Ratios of total times, with 95% intervals over prompts.
"""

import dataclasses
import json
import os
import pathlib
import sys

import numpy as np
from tqdm import tqdm

from experiments import against_huggingface_report, peers
from experiments import decoders as sides
from experiments.decoders import Decoded, Decoder
from experiments.step_timing import read_bandwidth
from specjax import prompts
from specjax.bench import load, results
from specjax.bench.checks import need_one_turn
from specjax.bench.config import Experiment
from specjax.bench.memory import bytes_per_token
from specjax.bench.plan import Plan, plan
from specjax.cli import command
from specjax.errors import UserError
from specjax.stats import metrics

_PILOT = 2  # prompts of a domain on which drafts are chosen
_LARGE = 512, 128  # MiB that bandwidth is measured with; quick
_ALL = 'all'
_RESULT = 'result.json'


def shrink(x: Experiment) -> None:
  """The quick version: fewer and shorter texts."""
  x.prompts.count = min(x.prompts.count, 2)
  x.max_new_tokens = min(x.max_new_tokens, 32)


def prepare(x: Experiment) -> Plan:
  """The plan of what the two sides can both do.

  Raises:
    UserError: names the field and the remedy.
  """
  if x.batch != 1:
    raise UserError(f'batch must be 1 in this comparison, got {x.batch}')
  if any(value is not None for value in vars(x.sampling).values()):
    raise UserError('sampling must be left alone: only temperatures compare')
  unknown = [name for name in x.drafters if name not in x.known]
  if unknown:
    raise UserError(f'drafters: {unknown} are not among the candidates')
  need_one_turn(x.prompts)
  planned = plan(x)
  if planned.rules != ('specjax.verify.token',):
    raise UserError(
      'verifiers must be token, the rule of transformers, got '
      f'{", ".join(planned.rules)}'
    )
  if not any(one.load == sides.LM for one in planned.drafters.values()):
    raise UserError(f'candidates: at least one must load {sides.LM}')
  if load.has_encoder(load.describe('target.path', x.target.path)):
    raise UserError(
      f'target.path: {x.target.path} is an encoder-decoder; this comparison is '
      'of models without an encoder, use experiments.run'
    )
  return planned


def _named(decoder: Decoder) -> dict:
  """What identifies a method in a row."""
  return {
    'method': decoder.family,
    'draft': decoder.draft,
    'gamma': decoder.gamma,
  }


def _estimated(name: str, estimate: metrics.Estimate) -> dict:
  return {name: estimate.value, f'{name}_ci': estimate.interval}


class Comparison:
  """Both sides in one process."""

  def __init__(self, plan: Plan):
    self.plan = plan
    pilot = 1 if plan.quick else _PILOT
    count = plan.prompts.count + pilot
    more = dataclasses.replace(plan.prompts, count=count)
    self.built = load.load_experiment(
      dataclasses.replace(plan, prompts=more)
    ).race()
    self.peer = sides.Peer(plan, self.built.target.dtype)
    self.decoders = sides.ours(plan, self.built) + self.peer.decoders(
      [
        (m.drafter, plan.drafters[m.drafter], m.gamma, m.draft_dtype)
        for m in self.built.methods
      ]
    )
    self.pilot, self.prompts = [], []
    for domain, chosen in self.built.prompts.items():
      # A file may have fewer; a single prompt is its own pilot.
      measured = max(1, len(chosen.texts) - pilot)
      self.prompts += [(domain, text) for text in chosen.texts[:measured]]
      self.pilot += [(domain, text) for text in chosen.texts[-pilot:]]
    self.conditions = results.conditions() | {
      'threads': peers.cores(),
      # Of other programs: two runtimes that share cores suffer unequally.
      'load_before': os.getloadavg()[0],
      'baseline': self.built.baseline.fields(),
      'peer': self.peer.conditions(),
    }
    self.runs: dict[tuple[str, float], list[Decoded]] = {}
    self.chosen: dict[str, Decoder] = {}
    self.pilot_seconds: list[dict] = []

  def choose(self, bar) -> None:
    """Compiles and warms up everything, and keeps one draft per family."""
    temperatures, length = self.plan.temperatures, self.plan.max_new_tokens
    for decoder in self.decoders:
      bar.set_description(f'warm-up: {decoder.family}')
      for temperature in temperatures:
        decoder.warm_up(self.pilot[0][1], temperature, length)
        bar.update()
    seconds = dict.fromkeys(self.decoders, 0.0)
    bar.set_description('choosing drafts')
    for i, (_, text) in enumerate(self.pilot):
      for temperature in temperatures:
        for decoder in self.decoders:
          run = decoder.decode(text, i, temperature, length)
          seconds[decoder] += run.seconds
          bar.update()
    tokens = len(self.pilot) * len(temperatures) * length
    for decoder, total in seconds.items():
      speed = {'tokens_per_second': tokens / total}
      self.pilot_seconds.append(_named(decoder) | speed)
      best = self.chosen.setdefault(decoder.family, decoder)
      if total < seconds[best]:
        self.chosen[decoder.family] = decoder

  def run(self) -> None:
    """Decodes every prompt with every method."""
    plan = self.plan
    passes = len(plan.temperatures) * len(self.decoders)
    families = len({d.family for d in self.decoders})
    total = passes * (1 + len(self.pilot))
    total += len(self.prompts) * len(plan.temperatures) * families
    with tqdm(total=total, file=sys.stderr) as bar:
      self.choose(bar)
      turn = list(self.chosen.values())
      for temperature in plan.temperatures:
        bar.set_description(f'temperature {temperature:g}')
        for i, (_, text) in enumerate(self.prompts):
          for decoder in turn:
            run = decoder.decode(text, i, temperature, plan.max_new_tokens)
            key = decoder.family, temperature
            self.runs.setdefault(key, []).append(run)
            bar.update()
          turn = turn[1:] + turn[:1]

  def of(self, domain: str, values) -> list:
    """Of one value a prompt, those of a domain."""
    pairs = zip(values, self.prompts, strict=True)
    return [value for value, (d, _) in pairs if domain in (d, _ALL)]

  def seconds(self, family, temperature, domain=_ALL) -> np.ndarray:
    """Times [prompts of the domain]."""
    runs = self.runs[family, temperature]
    return np.array([r.seconds for r in self.of(domain, runs)])

  def ratio(self, slow, fast, temperature, domain=_ALL) -> metrics.Estimate:
    """Time of one family over that of another, paired by prompt."""
    a = self.seconds(slow, temperature, domain)
    b = self.seconds(fast, temperature, domain)
    tokens = np.full(len(a), self.plan.max_new_tokens)
    return metrics.speedup(a, tokens, b, tokens)

  def agreement(self, family: str, domain: str = _ALL) -> dict:
    """Greedy texts against those of transformers' plain decoding."""
    mine, other = self.runs[family, 0], self.runs[sides.PEER, 0]
    texts = [text for _, text in self.prompts]
    triples = self.of(domain, zip(texts, mine, other, strict=True))
    gaps = [
      self.peer.gap(text, a.tokens, b.tokens)
      for text, a, b in triples
      if a.tokens != b.tokens
    ]
    return {
      'greedy_prompts': len(triples),
      'greedy_identical': len(triples) - len(gaps),
      'greedy_ties': sum(gap.tie for gap in gaps),
      'greedy_largest_gap': max((gap.logits for gap in gaps), default=0.0),
    }

  def row(self, family: str, temperature: float, domain: str) -> dict:
    decoder, plan = self.chosen[family], self.plan
    runs = self.of(domain, self.runs[family, temperature])
    tokens = len(runs) * plan.max_new_tokens
    seconds = [r.seconds for r in runs]
    speed = None
    if decoder.family.startswith('specjax'):
      speed = tokens / sum(r.decoding for r in runs)
    speedup = self.ratio(sides.PEER, family, temperature, domain)
    return {
      'program': 'against_huggingface',
      'config': plan.name,
      'target': self.built.target_name,
      'dtype': self.built.target.dtype,
      **_named(decoder),
      'domain': domain,
      'temperature': temperature,
      'prompts': len(runs),
      'prompts_hash': prompts.digest([text for _, text in self.prompts]),
      'tokens': tokens,
      'seconds': sum(seconds),
      'seconds_by_prompt': seconds,
      'tokens_per_second': tokens / sum(seconds),
      'decoding_tokens_per_second': speed,
      **_estimated('speedup', speedup),
      **({} if temperature else self.agreement(family, domain)),
      'seed': plan.seed,
    }

  def rows(self) -> list[dict]:
    """One row for each temperature, domain and family."""
    return [
      self.row(family, temperature, domain) | self.conditions
      for temperature in self.plan.temperatures
      for domain in (_ALL, *self.built.prompts)
      for family in self.chosen
    ]

  def ratios(self, temperature: float) -> dict:
    """Our methods against their counterparts, over all prompts."""

    def fastest(*families):
      known = [family for family in families if family in self.chosen]
      return min(known, key=lambda f: self.seconds(f, temperature).sum())

    plain = fastest(sides.PEER, sides.PEER_EAGER)
    assisted = fastest(sides.PEER_DEFAULTS, sides.PEER_CONSTANT)
    mine = [f for f in self.chosen if f.startswith('specjax')]
    theirs = [f for f in self.chosen if not f.startswith('specjax')]
    pairs = {
      'plain': (plain, sides.PLAIN),
      'assisted': (assisted, sides.DRAFT),
      'best': (fastest(*theirs), fastest(*mine)),
      'our_speedup': (sides.PLAIN, sides.DRAFT),
      'their_speedup': (plain, assisted),
    }
    if sides.PEER_LOOKUP in self.chosen:
      copied = [d.draft for d in self.decoders if d.family == sides.PEER_LOOKUP]
      ngrams = fastest(*(f'specjax {name}' for name in copied))
      pairs['lookup'] = sides.PEER_LOOKUP, ngrams
    fields = {}
    for name, (slow, fast) in pairs.items():
      ratio = self.ratio(slow, fast, temperature)
      fields |= _estimated(f'{name}_ratio', ratio)
      fields[f'{name}_pair'] = [slow, fast]
    return fields

  def limit(self, megabytes: int) -> dict:
    """Our plain step over the time its bytes take at the read bandwidth.

    Weights that fit into a cache may be read faster than memory: the
    bandwidth of an array of their size is reported beside it.
    """
    plan, built = self.plan, self.built
    runs = self.runs[sides.PLAIN, plan.temperatures[0]]
    target, params = built.plain.target, built.base.params.target
    slots, _ = built.slots(plan.max_new_tokens)
    weights, kv = bytes_per_token(target, params, slots)
    bandwidth = read_bandwidth(megabytes * 2**20)
    step = metrics.ratio(
      [r.decoding for r in runs], [len(r.tokens) for r in runs]
    )
    return {
      **_estimated('limit_ratio', step.scaled(bandwidth / (weights + kv))),
      'plain_step_ms': 1e3 * step.value,
      'weight_bytes': weights,
      'cache_bytes': kv,
      'bandwidth_gb_per_second': bandwidth / 1e9,
      'bandwidth_at_weight_size_gb_per_second': read_bandwidth(weights) / 1e9,
    }


def report(comparison: Comparison, folder: results.Folder) -> None:
  """Writes rows, table and the final numbers."""
  plan = comparison.plan
  for row in comparison.rows():
    folder.add(row)
  first, *_ = plan.temperatures
  result = {
    'temperature': first,
    **comparison.ratios(first),
    **comparison.limit(_LARGE[plan.quick]),
    **({} if first else comparison.agreement(sides.PLAIN)),
    'by_temperature': {
      f'{t:g}': comparison.ratios(t) for t in plan.temperatures
    },
    'choice_of_drafts': comparison.pilot_seconds,
    **comparison.conditions,
  }
  folder.write('summary.md', against_huggingface_report.summary(folder.rows))
  folder.write(_RESULT, json.dumps(result) + '\n')


def main(x: Experiment) -> None:
  if x.quick:
    shrink(x)
  planned = prepare(x)
  peers.libraries()
  results.check_folder(planned)
  path = pathlib.Path(planned.results)
  if (path / _RESULT).exists():
    print(f'{path} is complete; --config.results measures elsewhere')
  elif results.read_rows(path / 'rows.jsonl')[0]:
    raise UserError(
      f'results: {path} holds rows of a run that was cut off; choose another '
      'folder with --config.results'
    )
  else:
    comparison = Comparison(planned)  # What it refuses leaves no folder.
    folder = results.Folder(planned.results, planned.settings)
    comparison.run()
    report(comparison, folder)
  print((path / 'summary.md').read_text())
  result = json.loads((path / _RESULT).read_text())
  print(json.dumps({'results': str(path), **result}))


if __name__ == '__main__':
  command.run(main, Experiment)
