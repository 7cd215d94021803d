"""Do we decode faster than `generate` of transformers, on the same checkpoints?

  python -m experiments.against_huggingface --prompts.count=5

Batch 1, all cores for either side, both in the same dtype and in one run: every
method decodes a prompt before the next prompt comes, in an order that rotates.
Times run from the prompt's token ids in a Python list to the new ids in a
Python list, so both contain reading the prompt. No text ends early: the
end-of-text token means nothing to either side, and every text gets exactly as
many new tokens as were asked for, or it is an error. Drafts are chosen for each
method on prompts that are not compared: the fastest one counts, and the same
draft may be listed with several gammas.

Needs the extra `parity`. With five prompts of each domain, as in
results/against_huggingface, four and a half minutes on two idle cores. A folder
takes the rows of several machines. The last line is one JSON document:

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
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from tqdm import tqdm

from experiments import peers
from experiments.step_timing import read_bandwidth
from specjax import pair, prompts, sampling
from specjax.bench import load, measure, results
from specjax.bench.checks import need_one_turn
from specjax.bench.config import Candidate, Checkpoint, Experiment
from specjax.bench.memory import bytes_per_token
from specjax.bench.methods import Loaded, Method
from specjax.bench.plan import Plan, PlannedDrafter, plan
from specjax.cli import command
from specjax.errors import UserError, need
from specjax.reports import intervals
from specjax.reports.conditions import machine, over_blocks, values
from specjax.reports.markdown import (
  Columns,
  Table,
  blocks,
  bullets,
  number,
  paragraph,
)
from specjax.stats import metrics
from specjax.stats.row import group, pick

PLAIN = 'specjax plain'
DRAFT = 'specjax draft'
PEER = 'transformers plain'
PEER_EAGER = 'transformers plain, eager'
PEER_DEFAULTS = 'transformers assisted, defaults'
PEER_CONSTANT = 'transformers assisted, constant'
PEER_LOOKUP = 'transformers prompt lookup'
LM = 'specjax.drafters.lm.load'
NGRAM = 'specjax.drafters.ngram.load'
# Two greedy choices are as good where their logits differ by less than this,
# or than so many units in the last place of the largest one in 16 bits.
_TIE, _TIED_UNITS = 1e-3, 4
# Worker threads of the side before may spin for a while: let them sleep.
_PAUSE = 0.02
_PILOT = 2  # prompts of a domain on which drafts are chosen
_LARGE = 512, 128  # MiB that bandwidth is measured with; quick
_ALL = 'all'
_RESULT = 'result.json'


def get_config() -> Experiment:
  drafts = 'draft-64', 'draft-128', 'draft-256'
  return Experiment(
    name='against_huggingface',
    target=Checkpoint(pair.path('target')),
    candidates={name: Candidate('lm', 3, pair.path(name)) for name in drafts}
    | {'ngram': Candidate('ngram', 4)},
  )


def prepare(x: Experiment) -> Plan:
  """Returns the plan of what the two sides can both do.

  Raises:
    UserError: names the field and the remedy.
  """
  if x.quick:
    x.prompts.count = min(x.prompts.count, 2)
    x.max_new_tokens = min(x.max_new_tokens, 32)
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
    'verifiers must be token, the rule of transformers, got '
    f'{", ".join(planned.rules)}',
  )
  need(
    any(one.load == LM for one in planned.drafters.values()),
    f'candidates: at least one must load {LM}',
  )
  need(
    not load.has_encoder(load.describe('target.path', x.target.path)),
    f'target.path: {x.target.path} is an encoder-decoder; this comparison is '
    'of models without an encoder, use experiments.run',
  )
  return planned


class Decoded(NamedTuple):
  """One prompt, decoded once."""

  tokens: list[int]  # the new ones
  seconds: float  # prompt included
  decoding: float | None  # without the prompt; unknown for transformers


class Gap(NamedTuple):
  """Between the logits of two tokens, and whether it is no more than a tie."""

  logits: float
  tie: bool


@dataclasses.dataclass(frozen=True, eq=False)
class Decoder:
  """A way to continue a prompt.

  Attributes:
    family: its row of the table; of each family one decoder is compared.
    draft: candidate it drafts with, if any.
    gamma: drafted tokens.
    call: (prompt, index, temperature) -> (new tokens, decoding seconds).
  """

  family: str
  draft: str | None
  gamma: int | None
  call: Callable[[list[int], int, float], tuple[list[int], float | None]]

  def decode(
    self, prompt: list[int], index: int, temperature: float, new_tokens: int
  ) -> Decoded:
    """Decodes and takes the time.

    Args:
      prompt: token ids.
      index: of the prompt; seeds the sampling.
      temperature: 0 is greedy.
      new_tokens: that there must be.

    Raises:
      RuntimeError: the text has another number of new tokens.
    """
    time.sleep(_PAUSE)
    begin = time.perf_counter()
    tokens, decoding = self.call(prompt, index, temperature)
    seconds = time.perf_counter() - begin
    if len(tokens) != new_tokens:
      raise RuntimeError(
        f'{self.family} made {len(tokens)} new tokens instead of {new_tokens}'
      )
    return Decoded(tokens, seconds, decoding)

  def warm_up(self, prompt: list[int], temperature: float, new_tokens: int):
    """Decodes a prompt twice.

    Raises:
      UserError: the other side cannot.
    """
    try:
      for _ in range(2):
        self.decode(prompt, 0, temperature, new_tokens)
    except Exception as error:
      if self.family.startswith('specjax'):
        raise
      raise UserError(
        f'temperatures: {self.family} with the draft {self.draft} fails at '
        f'temperature {temperature:g} ({type(error).__name__}: {error}); leave '
        'out the temperature, or the drafter'
      ) from error


def ours(plan: Plan, built: Loaded) -> list[Decoder]:
  """Plain decoding and one decoder for each candidate and draft length."""
  slots, _ = built.slots

  def make(family: str, way: measure.Decoding, method: Method | None):
    way = way._replace(spec=dataclasses.replace(way.spec, eos=()))
    warm = []  # the first call compiles, no later one may

    def call(prompt, index, temperature):
      values = sampling.make(1, temperature)
      job = measure.Job(
        [prompt],
        np.array([index]),
        values,
        plan.max_new_tokens,
        plan.seed,
        slots,
      )
      run = measure.decode(way, job, timed=bool(warm))
      warm.append(True)
      return run.texts[0], run.seconds

    draft, gamma = (method.drafter, method.gamma) if method else (None, None)
    return Decoder(family, draft, gamma, call)

  decoders = [make(PLAIN, built.base, None)]
  for method in built.methods:
    lm = plan.drafters[method.drafter].load == LM
    family = DRAFT if lm else f'specjax {method.drafter}'
    decoders.append(make(family, method.way, method))
  return decoders


class Peer:
  """The checkpoints of both sides under `generate` of transformers.

  Args:
    plan: of the comparison.
    dtype: of the target.
  """

  def __init__(self, plan: Plan, dtype: str = 'float32'):
    self.plan = plan
    self.torch, self.transformers = peers.libraries()
    self.target = peers.load(plan.target, dtype)
    self.eager = peers.load(plan.target, dtype, attn_implementation='eager')

  def options(self, temperature: float) -> dict:
    """Arguments of `generate`; unless told, it would sample with top-k 50."""
    options = {'max_new_tokens': self.plan.max_new_tokens, 'use_cache': True}
    if not temperature:
      return options | {'do_sample': False}
    return options | {
      'do_sample': True,
      'temperature': float(temperature),
      'top_k': 0,
      'top_p': 1.0,
    }

  def make(
    self,
    family: str,
    model,
    draft: str | None = None,
    gamma: int | None = None,
    **more,
  ) -> Decoder:
    torch = self.torch

    def call(prompt, index, temperature):
      torch.manual_seed(self.plan.seed * 1_000_003 + index)
      ids = torch.tensor([prompt], device=model.device)
      out = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        **self.options(temperature),
        **more,
      )
      return out[0, len(prompt) :].tolist(), None

    return Decoder(family, draft, gamma, call)

  def tokenizers(self, path: str) -> dict:
    """Arguments of `generate` where a draft has a tokenizer of its own.

    Greedy texts are then written again in the other tokens, and sampled ones
    drafted in the tokens of both.
    """
    read = self.transformers.AutoTokenizer.from_pretrained
    own, other = read(self.plan.target), read(path)
    if own.get_vocab() == other.get_vocab():
      return {}
    return {'tokenizer': own, 'assistant_tokenizer': other}

  def decoders(
    self, chosen: Sequence[tuple[str, PlannedDrafter, int, str | None]]
  ) -> list[Decoder]:
    """Plain decoding, and the counterparts of our drafters.

    Args:
      chosen: our drafters as (name, drafter, gamma, dtype).
    """
    made = [
      self.make(PEER, self.target),
      self.make(PEER_EAGER, self.eager),
    ]
    paths = set()
    for name, planned, gamma, dtype in chosen:
      if planned.load == NGRAM:
        made.append(
          self.make(
            PEER_LOOKUP,
            self.target,
            name,
            gamma,
            prompt_lookup_num_tokens=gamma,
          )
        )
      if planned.load != LM:
        continue
      assert dtype is not None  # It has weights.
      speaks = self.tokenizers(planned.path)
      if planned.path not in paths:  # The defaults know no gamma of ours.
        paths.add(planned.path)
        draft = peers.load(planned.path, dtype)
        made.append(
          self.make(
            PEER_DEFAULTS, self.target, name, assistant_model=draft, **speaks
          )
        )
      constant = {
        'num_assistant_tokens': gamma,
        'num_assistant_tokens_schedule': 'constant',
        'assistant_confidence_threshold': 0.0,
      }
      draft = peers.load(planned.path, dtype, constant)
      made.append(
        self.make(
          PEER_CONSTANT,
          self.target,
          name,
          gamma,
          assistant_model=draft,
          **speaks,
        )
      )
    return made

  def conditions(self) -> dict:
    """Returns versions and settings that the numbers of this side depend on."""
    from transformers.utils import is_sklearn_available

    defaults = self.transformers.GenerationConfig
    defaults = defaults._get_default_generation_params()
    return {
      'torch': self.torch.__version__,
      'torch_device': self.target.device.type,
      'torch_threads': self.torch.get_num_threads(),
      'attention': self.target.config._attn_implementation,
      # With scikit-learn the confidence threshold adapts to the text.
      'scikit_learn': is_sklearn_available(),
      'assistant_defaults': {
        name: defaults.get(name)
        for name in (
          'num_assistant_tokens',
          'num_assistant_tokens_schedule',
          'assistant_confidence_threshold',
        )
      },
    }

  def gap(self, prompt: list[int], mine: list[int], other: list[int]) -> Gap:
    """Measures how much worse the worse token is where two greedy texts part.

    Returns the largest logit less the smaller one of the two chosen tokens.
    If they are the two best, this is the gap between them.
    """
    pairs = zip(mine, other, strict=True)
    at = next(i for i, (a, b) in enumerate(pairs) if a != b)
    text = [[*prompt, *mine[:at]]]
    ids = self.torch.tensor(text, device=self.target.device)
    with self.torch.inference_mode():
      logits = self.target(ids).logits[0, -1]
    gap = float(logits.max() - logits[[mine[at], other[at]]].min())
    units = _TIED_UNITS * self.torch.finfo(logits.dtype).eps
    return Gap(gap, gap < max(_TIE, units * float(logits.abs().max())))


def _named(decoder: Decoder) -> dict:
  """Returns the fields that identify a method in a row."""
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
    several = dataclasses.replace(plan, prompts=more)
    self.built = load.load_experiment(several).race()
    self.peer = Peer(plan, self.built.target.dtype)
    self.decoders = ours(plan, self.built) + self.peer.decoders(
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
    """Greedy texts against those of transformers' plain decoding."""
    mine, other = self.runs[family, 0], self.runs[PEER, 0]
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
    speedup = self.ratio(PEER, family, temperature, domain)
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

    plain = fastest(PEER, PEER_EAGER)
    assisted = fastest(PEER_DEFAULTS, PEER_CONSTANT)
    mine = [f for f in self.chosen if f.startswith('specjax')]
    theirs = [f for f in self.chosen if not f.startswith('specjax')]
    pairs = {
      'plain': (plain, PLAIN),
      'assisted': (assisted, DRAFT),
      'best': (fastest(*theirs), fastest(*mine)),
      'our_speedup': (PLAIN, DRAFT),
      'their_speedup': (plain, assisted),
    }
    if PEER_LOOKUP in self.chosen:
      copied = [d.draft for d in self.decoders if d.family == PEER_LOOKUP]
      ngrams = fastest(*(f'specjax {name}' for name in copied))
      pairs['lookup'] = PEER_LOOKUP, ngrams
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
    runs = self.runs[PLAIN, plan.temperatures[0]]
    target, params = built.plain.target, built.base.params.target
    slots, _ = built.slots
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
    comparison = Comparison(planned)  # What it refuses leaves no folder.
    comparison.run()
    report(comparison, results.Folder(planned.results, planned.settings))
  print((path / 'summary.md').read_text())
  print(json.dumps({'results': str(path), **_results_of(path)[device]}))


_COLUMNS: Columns = (
  ('method', lambda r: r['method']),
  ('draft', lambda r: r['draft'] or '-'),
  ('gamma', lambda r: str(r['gamma'] or '-')),
  ('tokens/s', lambda r: f'{r["tokens_per_second"]:.1f}'),
  (
    'without the prompt',
    lambda r: number(r['decoding_tokens_per_second'] or None, '.1f'),
  ),
  ('x transformers plain', lambda r: intervals.shown(r, 'speedup')),
  ('same text', lambda r: str(r.get('greedy_identical', '-'))),
)


def fields(row: dict) -> dict[str, Any]:
  del row  # Unused: all rows have the same.
  return {
    'method': str,
    'draft': str | None,
    'gamma': int | None,
    'domain': str,
    'temperature': float,
    'prompts': int,
    'tokens_per_second': float,
    'decoding_tokens_per_second': float | None,
    'speedup': float,
    'speedup_ci': tuple[float, ...] | None,
    'greedy_identical?': int | None,
    'device?': str,
    'peer?': dict[str, Any],
  }


def _by_place(rows: list[dict]) -> dict[str, list[dict]]:
  """Returns rows by temperature and domain, and by machine if there are some.

  Each is what a method decoded in one place.
  """
  several = len({row.get('device') for row in rows}) > 1
  names = 'device', 'domain', 'temperature'
  known = [{'device': ''} | row for row in rows]
  return {
    f'{f"{where}: " if several else ""}{domain}, temperature {cold:g}': here
    for (where, domain, cold), here in group(known, *names).items()
  }


def _fastest(rows: list[dict]) -> str:
  """The fastest method of each library, in one place."""
  winners = []
  for library in ('specjax', 'transformers'):
    mine = [r for r in rows if r['method'].startswith(library)]
    if mine:
      best = max(mine, key=lambda r: r['speedup'])
      draft = f' ({best["draft"]})' if best['draft'] else ''
      winners.append(
        f'{best["method"]}{draft} {intervals.shown(best, "speedup")}'
      )
  return ', '.join(winners)


def headline(rows: list[dict]) -> str:
  """The fastest of either library, over plain decoding of transformers."""
  peer = rows[0].get('peer') or {}
  facts = [
    f'{values(rows, "threads")} threads',
    f'torch {peer["torch"]}' if 'torch' in peer else '',
    f'{peer["attention"]} attention' if 'attention' in peer else '',
    f'transformers {(rows[0].get("versions") or {}).get("transformers", "?")}',
  ]
  places = _by_place(pick(rows, domain=_ALL) or rows)
  if len({row.get('device') for row in rows}) > 1:
    rows = [row | {'device': 'each of these machines'} for row in rows]
  return blocks(
    paragraph(
      'The fastest method of either library, in times plain decoding of '
      'transformers, the prompt included:'
    ),
    bullets(f'{place}: {_fastest(here)}' for place, here in places.items()),
    paragraph(f'{machine(rows, facts)}. {over_blocks(rows)}'),
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
