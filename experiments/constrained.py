"""What do constraints do to acceptance and speed, from loose to tight ones?

  python -m experiments.constrained
  python -m experiments.constrained :FOLDER --prompts.path=mbpp.jsonl

Each language, a JSON schema, constrains the texts of target and draft alike. A
draft that is not masked knows nothing of it, and `none` constrains neither. All
continue the same prompts with the same keys, and the speed-up is over plain
decoding under the same constraint. The automata of five schemas are stored
beside the embedded pair. A schema of your own is an entry of `languages`, with
`pip install 'specjax[constraints]'`. The second command is for the pair of
`configs/real_pair.py`, whose files FOLDER has: it describes functions in JSON,
of tasks with a field `text`.

forced      share of tokens that were the only ones allowed
free alpha  mean of beta at the other tokens, of a masked draft: at forced
            tokens its beta is 1
ended       share of texts that ended by themselves; the others were cut, and
            are the beginning of a text of the language
"""

import dataclasses
import functools
import json
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from configs import real_pair
from specjax import pair
from specjax.bench import measure, results, row_fields, sampling_stages, study
from specjax.bench.config import (
  Candidate,
  Checkpoint,
  Experiment,
  Prompts,
  SamplingValues,
)
from specjax.bench.load import load_experiment
from specjax.bench.methods import Loaded, Method
from specjax.bench.plan import Plan, whole_steps
from specjax.cli import command, progress
from specjax.errors import need
from specjax.reports import paired
from specjax.reports.conditions import values
from specjax.reports.markdown import Table, blocks, estimated, span
from specjax.sampling import Automaton
from specjax.stats import metrics
from specjax.stats.row import group, pick
from specjax.types import Context, Drafter, Spec

NONE = 'none'
# A string; up to eight records of two fields; one of five fields; choices
# alone; texts that are all but given.
_NAMES = ('note', 'table', 'character', 'choices', 'header')


@dataclasses.dataclass
class Languages(Experiment):
  """Texts within languages, one after the other.

  Attributes:
    languages: JSON schemas, files of them or of their saved automata, by name.
  """

  languages: dict[str, str] = dataclasses.field(default_factory=dict)

  def shrink(self) -> None:
    super().shrink()
    self.languages = dict(list(self.languages.items())[:1])


_TYPES = 'int', 'float', 'str', 'bool', 'list', 'dict', 'tuple', 'set'
_PARAMETER = {
  'type': 'object',
  'properties': {
    'name': {'type': 'string', 'maxLength': 24},
    'type': {'enum': _TYPES},
  },
  'required': ['name', 'type'],
}
# The signature of a function, as a call of a tool is described.
FUNCTION = {
  'type': 'object',
  'properties': {
    'name': {'type': 'string', 'maxLength': 32},
    'parameters': {'type': 'array', 'items': _PARAMETER, 'maxItems': 4},
    'returns': {'enum': _TYPES},
    'purpose': {'type': 'string', 'maxLength': 120},
  },
  'required': ['name', 'parameters', 'returns', 'purpose'],
}


def get_config(folder: str = '') -> Languages:
  """Returns the config of the embedded pair, or of files of a folder."""
  if folder:
    x = real_pair.get_config(folder)
    form = '{text}\nDescribe the function in JSON: name, parameters (each with '
    form += 'name and type), returns (a type), purpose.'
    few = {'drafters': ('sibling-int4', 'smollm2'), 'temperatures': (0.0, 1.0)}
    few['prompts'] = Prompts(form=form, chat=True, count=10)
    few['languages'] = {'function': json.dumps(FUNCTION)}
    return Languages(**vars(x) | few)
  draft = pair.path('draft-128')
  return Languages(
    name='constrained',
    target=Checkpoint(pair.path('target')),
    candidates={
      'draft-128': Candidate('lm', 3, draft),
      'draft-64': Candidate('lm', 3, pair.path('draft-64')),
      'ngram': Candidate('ngram', 4),
      'forced': Candidate('forced', 8),
      # The draft reads in one pass what leaves it no choice.
      'draft-128 and forced': Candidate(
        'cascade', 3, draft, {'inner': Candidate('forced', 3)}
      ),
    },
    languages={name: pair.constraint(name) for name in _NAMES},
    prompts=Prompts(domains=('structured',), count=24),
    max_new_tokens=96,
  )


def check(x: Languages) -> tuple[Plan, dict[str, SamplingValues]]:
  """Returns the plan, and the sampling of each language by name.

  Raises:
    UserError: names the field and the remedy.
  """
  need(x.languages, 'languages is empty: give at least one file of a schema')
  need(
    NONE not in x.languages,
    f'languages has {NONE!r}, which is measured anyway: choose another name',
  )
  need(
    not x.sampling.constrains,
    'sampling.regex and sampling.json_schema constrain all texts here: name '
    'languages instead',
  )
  need(x.batch == 1, f'batch is {x.batch}, but single prompts are timed here')
  planned = whole_steps(study.plan_one(x, 'verifiers'))
  sampled = {NONE: x.sampling}
  for name, path in x.languages.items():
    own = dataclasses.replace(x.sampling, json_schema=path)
    sampling_stages.check_stages(own)
    sampled[name] = sampling_stages.compile_for(
      own, planned.target, planned.max_new_tokens
    )
  return planned, sampled


@functools.cache
def _unmasked(drafter: Drafter) -> Drafter:
  """Returns the same drafter, which knows nothing of a constraint."""

  def free(given):
    if not isinstance(given, Context):
      return given
    return given._replace(
      sampling=given.sampling._replace(constraint=None),
      history=given.history._replace(state=None),
    )

  def bind(function):
    return lambda *given: function(*map(free, given))

  names = 'init', 'propose', 'commit'
  return drafter._replace(**{n: bind(getattr(drafter, n)) for n in names})


def _free(method: Method) -> Method:
  """Returns a method whose drafts know nothing of a constraint."""

  def free(spec: Spec) -> Spec:
    return dataclasses.replace(spec, drafter=_unmasked(spec.drafter))

  single = method.single._replace(spec=free(method.single.spec))
  return dataclasses.replace(method, spec=free(method.spec), single=single)


class Setting(NamedTuple):
  """One language at one temperature, and the prompts that it continues."""

  language: str
  sampling: SamplingValues
  temperature: float
  built: Loaded

  @property
  def automaton(self) -> Automaton | None:
    return getattr(self.sampling, 'constraint', None)

  def job(self, *indices: int) -> measure.Job:
    every = study.texts(self.built)
    texts = [every[i] for i in indices]
    job = self.built.job(texts, indices, self.temperature)
    own = sampling_stages.values(
      self.sampling, self.built.plain, len(texts), self.temperature
    )
    return dataclasses.replace(job, values=own)

  def forced(self, texts: list[list[int]]) -> np.ndarray:
    """How many tokens of each text were the only ones allowed."""
    counts = np.zeros(len(texts), int)
    for i, text in enumerate(texts if self.automaton else ()):
      state = 0
      for token in text:
        counts[i] += self.automaton.only[state] == token
        state = self.automaton.follow([token], state)
    return counts

  def missing(self, folder: results.Folder) -> dict[Method, dict]:
    """The methods without a row, each with the fields that identify it."""
    methods = self.built.methods
    ways = [(method, True) for method in methods]
    if self.automaton is not None:
      # A drafter without a distribution of its own is not masked anyway.
      ways += [(_free(m), False) for m in methods if m.draft is not None]
    found = {
      method: {
        'language': self.language,
        'temperature': self.temperature,
        'drafter': method.drafter,
        'gamma': method.gamma,
        'masked': masked,
      }
      for method, masked in ways
    }
    return {method: c for method, c in found.items() if not folder.has(**c)}

  def decode(self, missing: dict[Method, dict]) -> Iterator[dict]:
    """Decodes with all methods, in turn on each prompt, and takes alpha."""
    base, count = self.built.base, len(study.texts(self.built))
    jobs, wide = [self.job(i) for i in range(count)], self.job(*range(count))
    compiled = [(base, jobs[0])]
    for method in missing:
      compiled += [(method.way, jobs[0]), (method.single, wide)]
    measure.compile_all(compiled)
    plain, runs = [], {method: [] for method in missing}
    name = f'{self.language}, temperature {self.temperature:g}'
    for job in progress.over(name, jobs, alike=1):
      plain.append(measure.decode(base, job))
      for method, own in runs.items():
        own.append(measure.decode(method.way, job))
    for method, cell in missing.items():
      alpha = measure.decode(method.single, wide, timed=False)
      made = self.row(method, cell['masked'], plain, runs[method], alpha)
      yield self.built.models(method) | cell | made

  def row(self, method: Method, masked: bool, base, runs, looking) -> dict:
    """Numbers of a method; `base` and `runs` have a run for each prompt.

    `looking` is the run of all prompts that alpha is measured on.
    """
    counts, texts = row_fields.join(runs), [run.texts[0] for run in runs]
    alpha = row_fields.alpha_of([looking], len(texts))
    forced = self.forced(looking.texts)
    free = None  # Where drafts are not masked beta is not 1 at forced tokens.
    if masked and method.draft is not None:
      # But for rounding.
      own = np.maximum(alpha.overlap - forced, 0)
      free = row_fields.Alpha(own, alpha.prefixes - forced).estimate
    ours, plain = row_fields.batches_of(runs), row_fields.batches_of(base)
    found = {
      'alpha': alpha.estimate,
      'free_alpha': free,
      'forced': metrics.ratio(forced, [*map(len, looking.texts)], most=1.0),
      'tau': metrics.ratio(counts.tokens, counts.target_calls),
      'speedup': metrics.speedup(
        plain.seconds, plain.tokens, ours.seconds, ours.tokens
      ),
    }
    eos = self.built.plain.eos
    language = row_fields.language(self.automaton, runs, eos)
    language = language.get('constraint', {'states': 0, 'classes': 0})
    return {
      **metrics.fields(**found),
      'states': language['states'],
      'classes': language['classes'],
      'tokens': int(counts.tokens.sum()),
      'target_calls': int(counts.target_calls.sum()),
      'ended': float(np.mean([t[-1] in eos for t in texts])),
      'unit_overlap': alpha.overlap.tolist(),
      'unit_prefixes': alpha.prefixes.tolist(),
      'unit_tokens': counts.tokens.tolist(),
      'unit_target_calls': counts.target_calls.tolist(),
      **method.layouts(),
    }


def run(x: Languages) -> None:
  """Makes the rows that are missing, one language after another."""
  planned, sampled = check(x)
  folder = results.open_folder(planned)
  built = load_experiment(planned).race()
  need(
    len(built.prompts) == 1,
    f'prompts.domains must be a single one here, got {tuple(built.prompts)}',
  )
  texts = study.texts(built)
  common = study.facts('constrained', x, built, texts)
  common['new_tokens'] = planned.max_new_tokens
  todo = [
    (setting, missing)
    for name, own in sampled.items()
    for temperature in planned.temperatures
    if (setting := Setting(name, own, temperature, built))
    and (missing := setting.missing(folder))
  ]
  for setting, missing in todo:
    for made in setting.decode(missing):
      folder.add(results.plain(common | made))
  study.publish(folder)


# The rows as tables.


fields = study.alike(
  text='language drafter domain',
  flag='masked',
  count='gamma prompts new_tokens states classes',
  number='temperature ended alpha forced tau speedup',
  maybe='free_alpha',
  ends='alpha_ci? forced_ci? tau_ci? speedup_ci? free_alpha_ci?',
)


def headline(rows: list[dict]) -> str:
  """Where and how texts were decoded."""
  return study.headline(
    'Texts within languages',
    rows,
    f'{values(rows, "prompts")} prompts ({values(rows, "domain")})',
    f'up to {values(rows, "new_tokens")} new tokens',
  )


def _draft(row: dict) -> str:
  if row['language'] == NONE or not row.get('draft'):
    return '-'  # What is copied or looked up has no distribution to mask.
  return 'masked' if row['masked'] else 'not masked'


def _by_drafter(rows: list[dict]) -> Iterator[list[str]]:
  """Numbers without a constraint, and from the least to the most with one."""
  models = [r for r in rows if r.get('draft')]
  places = group(models, 'drafter', 'temperature')
  for (drafter, temperature), mine in places.items():
    free = pick(mine, language=NONE)
    bound = [r for r in mine if r['language'] != NONE]
    line = [drafter, f'{temperature:g}']
    for name in ('alpha', 'speedup'):
      for some in (free, pick(bound, masked=True), pick(bound, masked=False)):
        line.append(span(r[name] for r in some) if some else '-')
    yield line


def summary(rows: list[dict]) -> str:
  """The headline, numbers of each drafter, and of each language and way."""

  def change(row):
    """Alpha less that without a constraint, on the same prompts."""
    place = {n: row[n] for n in ('drafter', 'gamma', 'temperature')}
    free = pick(rows, language=NONE, **place)
    if not free or row is free[0]:
      return '-'
    found = paired.difference(free[0], row, paired.ALPHA)
    return estimated(found, '+.2f')

  columns = study.columns(
    ('language', 'language', ''),
    ('states', 'states', ''),
    ('T', 'temperature', 'g'),
    ('drafter', lambda r: f'{r["drafter"]}, {r["gamma"]}'),
    ('draft', _draft),
    ('forced', lambda r: f'{r["forced"]:.0%}'),
    ('alpha', 'alpha'),
    ('change', change),
    ('free alpha', 'free_alpha'),
    ('tau', 'tau'),
    ('speed-up', 'speedup'),
    ('ended', lambda r: f'{r["ended"]:.0%}'),
  )
  note = 'change: alpha less that without a constraint, on the same prompts.'
  table = Table.of('Constrained texts', note, columns, rows)
  ways = ('free', 'masked', 'not masked')
  short = Table(
    'By drafter',
    'Without a constraint, and from the least to the most of the languages '
    'where the draft is masked, and where it is not.',
    ['drafter', 'T', *(f'alpha, {w}' for w in ways),
     *(f'speed-up, {w}' for w in ways)],
    [*_by_drafter(rows)],
  )  # fmt: skip
  tables = [short, table] if short.lines else [table]
  return blocks(headline(rows), *(one.markdown() for one in tables))


if __name__ == '__main__':
  command.study(run, get_config)
