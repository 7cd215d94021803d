"""Do we decode faster than other programs, on the same checkpoints?

  python -m experiments.against --prompts.count=5

compares with `generate` of transformers (extra `parity`; with five prompts of
each domain, as in results/against_huggingface, four and a half minutes on two
idle cores). And

  python -m experiments.against --binaries=FOLDER \\
    --target.path=TARGET.gguf --draft.path=DRAFT.gguf --rounds \\
    --drafters=lm,lm-int4,ngram --gammas=4,6

with llama.cpp, whose programs are in FOLDER.

Batch 1, all cores for either side, the same weights, and one run: every method
decodes a prompt before the next prompt comes, in an order that rotates. Times
run from the prompt's token ids in a Python list to the new ids in a Python
list, so both contain reading the prompt. No text ends early: the end-of-text
token means nothing to us and to transformers, and llama.cpp never chooses it.
Every text gets exactly as many new tokens as were asked for, or it is an error.
Drafts are chosen for each method on prompts that are not compared: the fastest
one counts, and the same draft may be listed with several gammas.

A folder takes the rows of several machines. The last line is one JSON document:

plain_ratio     time of the peer's plain decoding (the faster, where it has
                two attentions) over ours
assisted_ratio  time of its fastest decoding with a draft model over that of
                our language model draft
best_ratio      time of its fastest method over that of ours
limit_ratio     our plain step over the time to read weights and cache once
Ratios of total times, with 95% intervals over prompts.
"""

import dataclasses
import json
import os
import pathlib
from collections.abc import Iterator

import numpy as np

from experiments import peers
from experiments.step_timing import read_bandwidth
from specjax import native, pair, prompts
from specjax.bench import load, measure, results, study
from specjax.bench.checks import need_one_turn
from specjax.bench.config import Candidate, Checkpoint, Experiment
from specjax.bench.memory import bytes_per_token
from specjax.bench.methods import Loaded, Method
from specjax.bench.plan import Plan, plan
from specjax.cli import command, progress
from specjax.errors import need
from specjax.reports import intervals
from specjax.reports.conditions import machine, values
from specjax.reports.markdown import Table, blocks, bullets, paragraph
from specjax.stats import metrics
from specjax.stats.row import group, pick

PLAIN = 'specjax plain'
DRAFT = 'specjax draft'
_PILOT = 2  # prompts of a domain on which drafts are chosen
_LARGE = 512, 128  # MiB that bandwidth is measured with; quick
_ALL = 'all'
_RESULT = 'result.json'


@dataclasses.dataclass
class Against(Experiment):
  """Our methods, and those of another program.

  Attributes:
    binaries: folder of llama.cpp's programs, the peer then; empty: the peer is
      transformers.
  """

  binaries: str = ''

  def shrink(self) -> None:
    """Leaves the quick version: few and short texts."""
    self.prompts.count = min(self.prompts.count, 2)
    self.max_new_tokens = min(self.max_new_tokens or 32, 32)


def get_config() -> Against:
  drafts = 'draft-64', 'draft-128', 'draft-256'
  return Against(
    name='against',
    target=Checkpoint(pair.path('target')),
    candidates={name: Candidate('lm', 3, pair.path(name)) for name in drafts}
    | {'ngram': Candidate('ngram', 4)},
  )


def prepare(x: Experiment) -> Plan:
  """Returns the plan of what the two sides can both do.

  Raises:
    UserError: names the field and the remedy.
  """
  need(x.batch == 1, f'batch must be 1 in this comparison, got {x.batch}')
  need(
    all(value is None for value in vars(x.sampling).values()),
    'sampling must be left alone: only temperatures compare',
  )
  unknown = [name for name in x.drafters if name not in x.known]
  need(not unknown, f'drafters: {unknown} are not among the candidates')
  need_one_turn(x.prompts)
  planned = plan(x)
  need(
    planned.rules == ('specjax.verify.token',),
    'verifiers must be token, the rule of the peers, got '
    f'{", ".join(planned.rules)}',
  )
  need(
    any(one.load == peers.LM for one in planned.drafters.values()),
    f'candidates: at least one must load {peers.LM}',
  )
  need(
    not load.has_encoder(load.describe('target.path', x.target.path)),
    f'target.path: {x.target.path} is an encoder-decoder; this comparison is '
    'of models without an encoder, use specjax run',
  )
  return planned


def ours(plan: Plan, built: Loaded) -> list[peers.Decoder]:
  """Plain decoding and one decoder for each candidate and draft length."""

  def make(family: str, way: measure.Decoding, method: Method | None):
    way = way._replace(spec=dataclasses.replace(way.spec, eos=()))
    warm = []  # the first call compiles, no later one may

    def call(prompt, index, temperature):
      job = built.job([prompt], [index], temperature)
      run = measure.decode(way, job, timed=bool(warm))
      warm.append(True)
      return run.texts[0], run.seconds

    draft, gamma = (method.drafter, method.gamma) if method else (None, None)
    return peers.Decoder(family, draft, gamma, call)

  decoders = [make(PLAIN, built.base, None)]
  for method in built.methods:
    lm = plan.drafters[method.drafter].load in (peers.LM, peers.FEW_BITS)
    family = DRAFT if lm else f'specjax {method.drafter}'
    decoders.append(make(family, method.way, method))
  return decoders


def _named(decoder: peers.Decoder) -> dict:
  """Returns the fields that identify a method in a row."""
  return {
    'method': decoder.family,
    'draft': decoder.draft,
    'gamma': decoder.gamma,
  }


class Comparison:
  """Both sides in one process."""

  def __init__(self, plan: Plan, binaries: str = ''):
    self.plan = plan
    self.peer: peers.Transformers | peers.LlamaCpp
    if binaries:
      self.peer = peers.LlamaCpp(plan, binaries)
    pilot = 1 if plan.quick else _PILOT
    count = plan.prompts.count + pilot
    more = dataclasses.replace(plan.prompts, count=count)
    several = dataclasses.replace(plan, prompts=more)
    self.built = load.load_experiment(several).race()
    if not binaries:
      self.peer = peers.Transformers(plan, self.built.target.dtype)
    chosen = [
      (m.drafter, plan.drafters[m.drafter], m.gamma, m.draft_dtype)
      for m in self.built.methods
    ]
    slots, _ = self.built.slots
    self.decoders = ours(plan, self.built) + self.peer.decoders(chosen, slots)
    self.pilot, self.prompts = [], []
    for domain, chosen in self.built.prompts.items():
      # A file may have fewer; a single prompt is its own pilot.
      measured = max(1, len(chosen.texts) - pilot)
      self.prompts += [(domain, text) for text in chosen.texts[:measured]]
      self.pilot += [(domain, text) for text in chosen.texts[-pilot:]]
    self.conditions = results.conditions() | {
      'threads': native.cores(),
      # Of other programs: two runtimes that share cores suffer unequally.
      'load_before': os.getloadavg()[0],
      'baseline': self.built.baseline.fields(),
      'peer': self.peer.conditions(),
    }
    self.runs: dict[tuple[str, float], list[peers.Decoded]] = {}
    self.chosen: dict[str, peers.Decoder] = {}
    self.pilot_seconds: list[dict] = []

  def choose(self) -> None:
    """Compiles and warms up everything, and keeps one draft per family."""
    temperatures, length = self.plan.temperatures, self.plan.max_new_tokens
    for decoder in progress.over('warm-up', self.decoders):
      for temperature in temperatures:
        decoder.warm_up(self.pilot[0][1], temperature, length)
    seconds = dict.fromkeys(self.decoders, 0.0)
    pilot = progress.over('choosing drafts', self.pilot, alike=1)
    for i, (_, text) in enumerate(pilot):
      for temperature in temperatures:
        for decoder in self.decoders:
          run = decoder.decode(text, i, temperature, length)
          seconds[decoder] += run.seconds
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
    self.choose()
    turn = list(self.chosen.values())
    for temperature in plan.temperatures:
      name = f'temperature {temperature:g}'
      texts = progress.over(name, self.prompts, alike=1)
      for i, (_, text) in enumerate(texts):
        for decoder in turn:
          run = decoder.decode(text, i, temperature, plan.max_new_tokens)
          key = decoder.family, temperature
          self.runs.setdefault(key, []).append(run)
        turn = turn[1:] + turn[:1]

  def of(self, domain: str, values) -> list:
    """Returns the values of a domain, of one value for each prompt."""
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
    """Greedy texts against those of the peer's plain decoding."""
    reference, *_ = self.peer.plain
    mine, other = self.runs[family, 0], self.runs[reference, 0]
    texts = [text for _, text in self.prompts]
    triples = self.of(domain, zip(texts, mine, other, strict=True))
    both = [(text, *self._before_end(a, b)) for text, a, b in triples]
    gaps = [self.peer.gap(text, a, b) for text, a, b in both if a != b]
    return {
      'greedy_prompts': len(triples),
      'greedy_identical': len(triples) - len(gaps),
      'greedy_ties': sum(gap.tie for gap in gaps),
      'greedy_largest_gap': max((gap.logits for gap in gaps), default=0.0),
    }

  def _before_end(self, *runs: peers.Decoded) -> Iterator[list[int]]:
    """Yields the tokens before the first that would end a text of a peer's.

    Transformers goes on behind it as we do.
    """
    ends = () if self.peer.name == 'transformers' else self.built.target.eos
    least = min(
      (i for run in runs for i, t in enumerate(run.tokens) if t in ends),
      default=None,
    )
    return (run.tokens[:least] for run in runs)

  def row(self, family: str, temperature: float, domain: str) -> dict:
    decoder, plan = self.chosen[family], self.plan
    runs = self.of(domain, self.runs[family, temperature])
    tokens = len(runs) * plan.max_new_tokens
    seconds = [r.seconds for r in runs]
    decoding = [r.decoding for r in runs if r.decoding is not None]
    speed = tokens / sum(decoding) if len(decoding) == len(runs) else None
    speedup = self.ratio(self.peer.plain[0], family, temperature, domain)
    return {
      'program': 'against',
      'config': plan.name,
      'target': self.built.target_name,
      'dtype': self.built.target.dtype,
      **self.built.held,
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
      **metrics.fields(speedup=speedup),
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

    plain = fastest(*self.peer.plain)
    assisted = fastest(*self.peer.assisted)
    mine = [f for f in self.chosen if f.startswith('specjax')]
    theirs = [f for f in self.chosen if not f.startswith('specjax')]
    pairs = {
      'plain': (plain, PLAIN),
      'assisted': (assisted, DRAFT),
      'best': (fastest(*theirs), fastest(*mine)),
      'our_speedup': (PLAIN, DRAFT),
      'their_speedup': (plain, assisted),
    }
    if self.peer.lookup in self.chosen:
      copied = [d.draft for d in self.decoders if d.family == self.peer.lookup]
      ngrams = fastest(*(f'specjax {name}' for name in copied))
      pairs['lookup'] = self.peer.lookup, ngrams
    fields = {}
    for name, (slow, fast) in pairs.items():
      ratio = self.ratio(slow, fast, temperature)
      fields |= metrics.fields(**{f'{name}_ratio': ratio})
      fields[f'{name}_pair'] = [slow, fast]
    return fields

  def limit(self, megabytes: int) -> dict:
    """Our plain step over the time its bytes take at the read bandwidth.

    Weights that fit into a cache may be read faster than memory: the
    bandwidth of an array of their size is reported beside it.
    """
    plan, built = self.plan, self.built
    runs = self.runs[PLAIN, plan.temperatures[0]]
    target, params = built.plain.target, built.base.params.target
    slots, _ = built.slots
    weights, kv = bytes_per_token(target, params, slots)
    bandwidth = read_bandwidth(megabytes * 2**20)
    step = metrics.ratio(
      [r.decoding for r in runs], [len(r.tokens) for r in runs]
    )
    limit_ratio = step.scaled(bandwidth / (weights + kv))
    return {
      **metrics.fields(limit_ratio=limit_ratio),
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
    **({} if first else comparison.agreement(PLAIN)),
    'by_temperature': {
      f'{t:g}': comparison.ratios(t) for t in plan.temperatures
    },
    'choice_of_drafts': comparison.pilot_seconds,
    **comparison.conditions,
  }
  both = _results_of(folder.path) | {result['device']: result}
  folder.write('summary.md', summary(folder.rows))
  folder.write(_RESULT, json.dumps(both) + '\n')


def _results_of(path: pathlib.Path) -> dict[str, dict]:
  """Returns the final numbers in a folder, by machine."""
  file = path / _RESULT
  return json.loads(file.read_text()) if file.exists() else {}


def run(x: Experiment) -> None:
  """Compares on this machine, unless its results are there already."""
  planned = prepare(x)
  if not x.binaries:
    peers.libraries()
  results.check_folder(planned)
  path, device = pathlib.Path(planned.results), results.conditions()['device']
  if device in _results_of(path):
    print(f'{path} is complete; --results measures elsewhere')
  else:
    rows, _ = results.read_rows(path / 'rows.jsonl')
    need(
      not pick(rows, device=device),
      f'results: {path} holds rows of a run that was cut off; choose another '
      'folder with --results',
    )
    # What it refuses leaves no folder.
    comparison = Comparison(planned, x.binaries)
    comparison.run()
    report(comparison, results.Folder(planned.results, planned.settings))
  print((path / 'summary.md').read_text())
  print(json.dumps({'results': str(path), **_results_of(path)[device]}))


_COLUMNS = study.columns(
  ('method', 'method', ''),
  ('draft', 'draft', ''),
  ('gamma', 'gamma', ''),
  ('tokens/s', 'tokens_per_second', '.1f'),
  ('without the prompt', 'decoding_tokens_per_second', '.1f'),
  ('x plain of the peer', 'speedup'),
  ('same text', lambda r: str(r.get('greedy_identical', '-'))),
)


fields = study.alike(
  text='method domain device',
  maybe_text='draft',
  count='prompts',
  maybe_count='gamma greedy_identical?',
  number='temperature tokens_per_second speedup',
  maybe='decoding_tokens_per_second',
  ends='speedup_ci',
  table='peer',
)


def _by_place(rows: list[dict]) -> dict[str, list[dict]]:
  """Returns rows by temperature and domain, and by machine if there are some.

  Each is what a method decoded in one place.
  """
  several = len(group(rows, 'device')) > 1
  places = group(rows, 'device', 'domain', 'temperature')
  return {
    f'{f"{where}: " if several else ""}{domain}, temperature {cold:g}': here
    for (where, domain, cold), here in places.items()
  }


def _fastest(rows: list[dict]) -> str:
  """The fastest method of each program, in one place."""
  winners = []
  for program in dict.fromkeys(r['method'].split()[0] for r in rows):
    mine = [r for r in rows if r['method'].startswith(program)]
    best = max(mine, key=lambda r: r['speedup'])
    draft = f' ({best["draft"]})' if best['draft'] else ''
    winners.append(
      f'{best["method"]}{draft} {intervals.shown(best, "speedup")}'
    )
  return ', '.join(winners)


def headline(rows: list[dict]) -> str:
  """The fastest of either program, over plain decoding of the peer."""
  peer = rows[0]['peer']
  facts = [f'{values(rows, "threads")} threads', values(rows, 'weights')]
  name = 'llama.cpp'
  if name in peer:
    facts.append(f'{name} {peer[name]}')
  else:
    name = 'transformers'
    facts += [f'torch {peer["torch"]}', f'{peer["attention"]} attention']
    facts.append(f'{name} {rows[0]["versions"][name]}')
  places = _by_place(pick(rows, domain=_ALL) or rows)
  if len(group(rows, 'device')) > 1:
    rows = [row | {'device': 'each of these machines'} for row in rows]
  return blocks(
    paragraph(
      f'The fastest method of either program, in times plain decoding of '
      f'{name}, the prompt included:'
    ),
    bullets(f'{place}: {_fastest(here)}' for place, here in places.items()),
    paragraph(f'{machine(rows, facts)}.'),
  )


def summary(rows: list[dict]) -> str:
  """The headline, and a table for each machine, temperature and domain."""
  tables = [
    Table.of(f'{place}, {here[0]["prompts"]} prompts', '', _COLUMNS, here)
    for place, here in _by_place(rows).items()
  ]
  return blocks(headline(rows), *(table.markdown() for table in tables))


if __name__ == '__main__':
  command.study(run, get_config)
