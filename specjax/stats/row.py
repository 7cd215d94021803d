"""The fields of a row of results, each declared once.

A row is one JSON object of a file rows.jsonl: one cell of a run, or one part
of another program. What is checked when rows are read, what is shown, and the
table of fields in docs/measuring.md come from the declarations below. A new
field of a row is one line here, and the line that computes it.
"""

import dataclasses
import types
import typing
from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np

from specjax.cli.fields import fits, in_words, shown

# Fields that identify a row of a run.
KEY = ('drafter', 'verifier', 'gamma', 'domain', 'temperature', 'batch')
# The layout of a row. A program reads rows of its own layout and sets others
# aside; they stay in the file.
SCHEMA = 1
PROMPTS, BATCHES = 'prompts', 'batches'
_NUMBER = float | None
_NUMBERS: TypeAlias = list[float | None] | None
_COUNT, _COUNTS = int | None, list[int | None] | None
_TEXT, _OBJECT = str | None, dict[str, Any] | None
_OBJECTS = list[dict[str, Any]] | None


@dataclasses.dataclass(frozen=True)
class Field:
  """One field of a row.

  Attributes:
    kind: its type, as JSON is read.
    meaning: what the value is, in a few words.
    unit: of the value; '' of a text, a count or a share.
    over: what the interval of the field is taken over, `PROMPTS` or `BATCHES`.
      The interval is another field, with _ci behind the name; '' where there
      is none.
    form: the format of the number in a table.
    title: the heading of its column; '' is the name of the field.
    needed: whether a row must have the field though its type admits null.
      A row must have every field whose type does not.
  """

  kind: Any
  meaning: str
  unit: str = ''
  over: str = ''
  form: str = '.2f'
  title: str = ''
  needed: bool = False

  @property
  def required(self) -> bool:
    held = typing.get_args(self.kind)
    return self.needed or not (self.kind is Any or types.NoneType in held)


Fields = Mapping[str, Field]


def _with(fields: Fields, *names: str, **changes) -> dict[str, Field]:
  """Returns some fields with changes, such as a narrower `kind`."""
  return {n: dataclasses.replace(fields[n], **changes) for n in names}


# Fields that every program writes, where it knows them.
ORIGIN: Fields = {
  'schema': Field(_COUNT, 'the layout of the row'),
  'program': Field(_TEXT, 'the program that made the row'),
  'config': Field(_TEXT, 'the name of the config'),
  'command': Field(_TEXT, 'the command line of a run'),
  'target': Field(_TEXT, 'the target model'),
  'target_revision': Field(_TEXT, 'its commit on the Hub'),
  'draft': Field(_TEXT, 'the weights that draft; null without any'),
  'draft_revision': Field(_TEXT, 'their commit on the Hub'),
  'dtype': Field(_TEXT, 'the precision of the target'),
  'draft_dtype': Field(_TEXT, 'the precision of the draft'),
  'weights': Field(_TEXT, 'the bits of matrices, where they are no floats'),
  'prompts_hash': Field(_TEXT, 'a hash of the prompts'),
  'prompts_from': Field(_OBJECT, 'where the prompts come from'),
  'new_tokens': Field(_COUNT, 'the largest number of new tokens', 'tokens'),
  'seed': Field(_COUNT, 'the seed of all draws'),
  'versions': Field(_OBJECT, 'versions of packages'),
  'device': Field(_TEXT, 'the processor or accelerator'),
  'xla_threads': Field(_COUNT, 'threads that XLA uses'),
  'commit': Field(_TEXT, 'the commit of the checkout'),
  'impossible': Field(list[str] | None, 'numbers that cannot be true, and why'),
}  # fmt: skip

# The cell: which method decoded which prompts.
CELL: Fields = {
  'drafter': Field(str, 'the name of the drafter'),
  'verifier': Field(str, 'the name of the rule', title='rule'),
  'gamma': Field(int, 'the draft length', 'tokens'),
  'domain': Field(str, 'the domain of the prompts'),
  'temperature': Field(float, 'the temperature of sampling', form='g'),
  'batch': Field(int, 'prompts that are decoded together'),
}  # fmt: skip

DRAFTER: Fields = {
  'load': Field(_TEXT, 'the function that loads the drafter'),
  'options': Field(_OBJECT, 'its options'),
  'parameters': Field(_COUNT, 'numbers in the own weights of the drafter'),
  'bytes': Field(_COUNT, 'size of the own weights', 'bytes'),
  'training': Field(_OBJECT, 'time and tokens that training took'),
  'guesses': Field(_OBJECT, 'how often heads were right on held-out text'),
  'vocabulary': Field(_OBJECT, 'tokens that the draft shares with the target'),
  'pairing': Field(_TEXT, 'why the weights may be of another target'),
  'reading': Field(_OBJECT, 'the best reading of a head in a short probe'),
  'lossless': Field(bool, 'the rule keeps the distribution of the target'),
}  # fmt: skip

# What does not depend on the machine.
COUNTED: Fields = {
  'timed': Field(bool | None, 'time was taken'),
  'prompts': Field(int, 'number of prompts'),
  'unit_prompts': Field(list[str] | None, 'a hash of each prompt'),
  'texts': Field(_COUNT, 'number of texts, which are turns of conversations'),
  'by_turn': Field(_OBJECTS, 'numbers of each turn of conversations'),
  'shortened': Field(_COUNT, 'prompts in which an answer lost its end'),
  'constraint': Field(_OBJECT, 'the language that texts are held to'),
  'ended': Field(_NUMBER, 'share of texts that ended by themselves'),
  'tokens': Field(_COUNT, 'new tokens', 'tokens'),
  'target_calls': Field(_COUNT, 'calls of the target', 'calls'),
  'steps': Field(_COUNT, 'steps of the loop', 'steps'),
  'drafted': Field(_COUNT, 'drafted tokens of whole steps', 'tokens'),
  'accepted': Field(_COUNT, 'accepted tokens of whole steps', 'tokens'),
  'coverage': Field(_NUMBER, 'share of whole steps with a draft'),
  'alpha': Field(
    _NUMBER, 'mean of sum(min(p, q)) along target text', '', PROMPTS
  ),
  'alpha_of_rule': Field(
    _NUMBER, 'chance that a first token is accepted', '', PROMPTS
  ),
  'alpha_mle': Field(_NUMBER, 'accepted over judged tokens'),
  'acceptance': Field(_NUMBER, 'accepted over drafted tokens'),
  'acceptance_by_position': Field(
    _NUMBERS, 'share of whole steps that accept each place'
  ),
  'acceptance_by_position_conditional': Field(
    _NUMBERS, 'share of the steps that judge it'
  ),
  'acceptance_by_context': Field(_OBJECTS, 'acceptance by length of the text'),
  'autocorrelation': Field(
    list[_NUMBERS] | None, 'correlation of accepted lengths, and its ends'
  ),
  'histogram': Field(_COUNTS, 'whole steps by accepted length', 'steps'),
  'tau': Field(_NUMBER, 'tokens per call of the target', 'tokens', PROMPTS),
  'tau_per_request': Field(
    _NUMBER, "mean of the prompts' own tau", 'tokens', PROMPTS
  ),
  'tau_per_step': Field(
    _NUMBER, 'mean of accepted + 1 over whole steps', 'tokens', PROMPTS
  ),
  'tau_without_bonus': Field(
    _NUMBER, 'mean accepted length of whole steps', 'tokens', PROMPTS
  ),
  'repetition': Field(_NUMBER, 'share of 4-grams of plain text that repeat'),
  'unit_tokens': Field(_NUMBERS, 'tokens of each prompt'),
  'unit_target_calls': Field(_NUMBERS, 'target calls of each prompt'),
  'unit_accepted': Field(_NUMBERS, 'accepted tokens of each prompt'),
  'unit_steps': Field(_NUMBERS, 'whole steps of each prompt'),
  'unit_histogram': Field(list[list[int]] | None, 'histogram of each prompt'),
  'unit_overlap': Field(_NUMBERS, 'sum of sum(min(p, q)) of each prompt'),
  'unit_overlap_of_rule': Field(_NUMBERS, 'sum of its chances'),
  'unit_prefixes': Field(_NUMBERS, 'prefixes of each prompt in these sums'),
  'identical_to_plain': Field(_COUNT, 'greedy texts equal to plain decoding'),
  'differences': Field(_OBJECTS, 'where other greedy texts part, and why'),
}  # fmt: skip

# What is null where no time was taken.
TIMES: Fields = {
  'baseline': Field(_OBJECT, 'layout of the weights of plain decoding'),
  'verification': Field(_OBJECT, 'layout of the weights that score'),
  'drafting': Field(_OBJECT, 'layout of the weights that draft'),
  'seconds': Field(_NUMBER, 'time of all batches, without the prefill', 's'),
  'prefill_seconds': Field(_NUMBER, 'time of the prefill', 's'),
  'tokens_per_second': Field(
    _NUMBER, 'speed of the method', 'tokens/s', form='.0f', title='tokens/s'
  ),
  'baseline_tokens_per_second': Field(
    _NUMBER, 'speed of plain decoding', 'tokens/s', form='.0f'
  ),
  'speedup': Field(
    _NUMBER, 'time per token of plain decoding over that of the method',
    'times plain', BATCHES, title='speed-up'
  ),
  'speedup_of_rates': Field(
    _NUMBER, "ratio of the means of the batches' tokens per second",
    'times plain', BATCHES, title='speed-up of rates',
  ),
  'c': Field(_NUMBER, 'cost of a drafted token', 'plain steps', form='.3f'),
  'v': Field(
    _NUMBER, 'cost of scoring, judging and committing gamma + 1 tokens',
    'plain steps'
  ),
  'seconds_per_step': Field(_OBJECT, 'time of steps, turn by turn', 's'),
  'predicted_speedup': Field(
    _NUMBER, 'tau / (v + gamma c)', 'times plain', BATCHES, title='predicted'
  ),
  'measured_over_predicted': Field(
    _NUMBER, 'speed-up over the predicted one', '', BATCHES
  ),
  'unit_seconds': Field(_NUMBERS, 'time of each batch', 's'),
  'unit_baseline_seconds': Field(
    _NUMBERS, 'time of plain decoding of each batch', 's'
  ),
  'unit_baseline_tokens': Field(
    _NUMBERS, 'tokens of plain decoding of each prompt'
  ),
  'at_work': Field(
    _NUMBER, 'share of steps with rows at work', form='.0%', title='at work'
  ),
  'baseline_at_work': Field(_NUMBER, 'the same share of plain decoding'),
  'row_seconds_per_token': Field(
    _NUMBER, 'time per token of a row until it ends', 's', BATCHES
  ),
  'baseline_row_seconds_per_token': Field(
    _NUMBER, 'the same time of plain decoding', 's', BATCHES
  ),
  'predicted_static_speedup': Field(
    _NUMBER, 'predicted speed-up of batches that wait for their last row',
    'times plain', BATCHES, title='predicted',
  ),
  'measured_over_predicted_static': Field(
    _NUMBER, 'speed-up over that prediction', '', BATCHES,
    title='measured / predicted',
  ),
}  # fmt: skip

RUN: Fields = {
  **ORIGIN,
  'config': Field(str, 'the name of the config'),
  **CELL,
  **DRAFTER,
  **COUNTED,
  **_with(
    COUNTED, 'alpha', 'tau', 'acceptance_by_position', 'identical_to_plain',
    'differences', needed=True,
  ),
  **TIMES,
  **_with(
    TIMES, 'tokens_per_second', 'baseline_tokens_per_second', 'speedup', 'c',
    'v', 'predicted_speedup', needed=True,
  ),
  'compilations': Field(_NUMBER, 'programs that were compiled meanwhile'),
  'mesh': Field(_OBJECT, 'devices and processes'),
  'collectives': Field(_OBJECT, 'what devices exchange at a step', 'bytes'),
  'paper': Field(Any, 'a published number of the cell'),
}  # fmt: skip

# The fields that `specjax predict` adds to those of a run.
PREDICTED: Fields = {
  'predicted_tau': Field(float, 'tau of the replay', title='tau, replayed'),
  'tau_by_beta': Field(float, 'tau expected from beta', title='with beta'),
  'tau_iid': Field(float, 'tau of Equation 1', title='i.i.d.'),
  'predicted_over_measured': Field(
    float, 'predicted over measured speed-up', '', BATCHES,
    title='predicted / measured',
  ),
  'difference': Field(_NUMBER, 'measured less replayed tau', 'tokens', PROMPTS),
  'speedup_at_work': Field(
    _NUMBER, 'speed-up if rows did not wait for the last', 'times plain',
    BATCHES, title='speed-up at work',
  ),
}  # fmt: skip
_ASKED = {'asked_gamma': Field(int, 'the draft length of the config')}
EXPLAIN: Fields = {
  **RUN,
  **_with(
    RUN, 'c', 'v', 'predicted_speedup', 'speedup', 'seconds',
    'measured_over_predicted', 'baseline_tokens_per_second', kind=float,
  ),
  **_with(RUN, 'steps', kind=int),
  **_ASKED,
}  # fmt: skip
PHASES: Fields = {
  **ORIGIN,
  **{name: CELL[name] for name in KEY if name != 'batch'},
  **_ASKED,
  'temperature': Field(_NUMBER, 'null: the phases are of greedy text'),
  'loops': Field(dict, 'time of loops without their parts', 's'),
  'reads': Field(_OBJECT, 'bytes that a plain step and a drafted token read'),
  'experts': Field(_OBJECT, 'experts that steps of a mixture touch, and bytes'),
}  # fmt: skip

# The three parts of a prediction.
_SEEN = {'part': Field(str, 'replay, cost or check'), **ORIGIN, **CELL}
REPLAY: Fields = {
  **_SEEN,
  'gamma': Field(_COUNT, 'null'),
  'prompts': COUNTED['prompts'],
  'tokens': Field(int, 'tokens of the target', 'tokens'),
  'unit_tokens': COUNTED['unit_tokens'],
  'unit_overlap': COUNTED['unit_overlap'],
  'digests': Field(list[str] | None, 'a hash of each text'),
  'coverage': COUNTED['coverage'],
  'alpha': COUNTED['alpha'],
  'gammas': Field(list[int], 'draft lengths'),
  'unit_target_calls': Field(list[list[float]], 'target calls, by length'),
  'tau': Field(list[float], 'tau of the replay, by draft length', 'tokens'),
  'tau_ci': Field(list[_NUMBERS] | None, 'their intervals'),
  'tau_by_beta': Field(_NUMBERS, 'tau expected from beta along the text'),
  'tau_iid': Field(_NUMBERS, 'tau of Equation 1 for alpha'),
}  # fmt: skip
_COST = ('seconds_per_step', 'baseline', 'verification', 'drafting')
COST: Fields = {
  **_SEEN,
  'domain': Field(_TEXT, 'null: costs are of all prompts'),
  'temperature': Field(_NUMBER, 'null'),
  **_with(TIMES, 'c', 'v', kind=float),
  **{name: TIMES[name] for name in _COST},
  'plain_seconds': Field(float, 'time of a plain step', 's'),
}  # fmt: skip
CHECK: Fields = {
  **_SEEN,
  'prompts': COUNTED['prompts'],
  'same_text': Field(int, 'texts that the loop wrote as the replay'),
  'equal_calls': Field(int, 'texts of these with as many target calls'),
  **_with(COUNTED, 'alpha', 'tau', kind=float),
  **_with(TIMES, 'c', 'v', 'predicted_speedup', 'speedup', kind=float),
  **{name: TIMES[name] for name in _COST[1:]},
  **_with(COUNTED, 'unit_tokens', 'unit_target_calls', kind=list[float]),
  **_with(
    TIMES, 'unit_seconds', 'unit_baseline_seconds', 'unit_baseline_tokens',
    kind=list[float],
  ),
  **PREDICTED,
}  # fmt: skip

PARITY: Fields = {
  **ORIGIN,
  **CELL,
  'temperature': Field(_NUMBER, 'the temperature of sampling'),
  'against': Field(str, 'what the texts are compared with'),
  'dtype': Field(str, 'the precision'),
  'compared': Field(int, 'texts', 'texts'),
  'ties': Field(int, 'texts that part at a tie', 'texts'),
  'bugs': Field(int, 'texts that part by more than a tie', 'texts'),
  'differences': Field(list[dict[str, Any]], 'where texts part'),
}  # fmt: skip
PROBE: Fields = {
  **ORIGIN,
  'drafter': CELL['drafter'],
  'alternative': Field(str, 'the name of a reading of the head'),
  'changes': Field(dict, 'options of the reading'),
  'gamma': CELL['gamma'],
  'prompts': COUNTED['prompts'],
  'new_tokens': Field(int, 'tokens of each prompt', 'tokens'),
  'unit_places': Field(list[int], 'drafts of each prompt'),
  'unit_accepted': Field(list[list[float]], 'drafts that agree, by length'),
  'alphas': Field(_NUMBERS, 'chance that each token agrees'),
}  # fmt: skip

# The parts of a certificate.
_CASE = {
  'rule': Field(str, 'the rule'),
  'drafter': Field(str, 'the kind of draft'),
  'model': Field(str, 'the kind of target'),
  'setting': Field(str, 'temperature, length and stages'),
}
_CERTIFICATE: Mapping[str, Fields] = {
  'distribution': {
    **_CASE,
    'lossless': DRAFTER['lossless'],
    'max_error': Field(float, 'largest error of the probability of a text'),
    'total_variation': Field(float, 'distance of all texts together'),
    'calls': Field(float, 'expected calls of the target', 'calls'),
  },
  'loop': {
    **_CASE,
    'samples': Field(int, 'texts of the compiled loop', 'texts'),
    'p_value': Field(float, 'of the test'),
    'level': Field(float, 'the p-value below which the test gives an alarm'),
    'freedom': Field(_COUNT, 'degrees of freedom of the test'),
    'power': Field(_NUMBER, 'chance of an alarm if acceptance were wrong'),
  },
  'published': {
    'rule': _CASE['rule'],
    'source': Field(str, 'the published example'),
    'published': Field(float, 'accepted tokens of the paper', 'tokens'),
    'accepted': Field(float, 'accepted tokens here', 'tokens'),
  },
  'block': {
    'gamma': CELL['gamma'],
    'temperature': CELL['temperature'],
    'pairs': Field(int, 'random pairs of models'),
    'least': Field(float, 'least gain of block verification', 'tokens'),
    'mean': Field(float, 'mean gain of block verification', 'tokens'),
  },
  'mutant': {
    'mutant': Field(str, 'a planted bug'),
    'test': Field(str, 'the part that sees it'),
    'setting': Field(str, 'where it is seen'),
    'evidence': Field(float, 'how clearly'),
    'bound': Field(_NUMBER, 'what the evidence has to pass'),
    'caught': Field(bool, 'it is found'),
  },
  'arithmetic': {
    **{name: _CASE[name] for name in ('rule', 'drafter')},
    'dtype': Field(str, 'the precision'),
    'total_variation': Field(float, 'distance from plain decoding in it'),
    'of_plain': Field(float, 'its distance from float64'),
  },
  'end': {
    'seconds': Field(float, 'time of the certificate', 's'),
    'boost': Field(float, 'the factor of acceptance of which power is'),
  },
}


def of(row: Mapping[str, Any]) -> Fields | None:
  """Returns the fields of a row by its program and part.

  None of a program that declares its fields elsewhere, or of none at all.
  """
  match row.get('program'):
    case 'run':
      return RUN
    case 'explain':
      return PHASES if 'loops' in row else EXPLAIN
    case 'predict':
      parts = {'replay': REPLAY, 'cost': COST, 'check': CHECK}
      return parts.get(str(row.get('part')), {'part': _SEEN['part']})
    case 'parity':
      return PARITY
    case 'probe':
      return PROBE
    case 'certify':
      own = _CERTIFICATE.get(str(row.get('part')), {})
      return {**ORIGIN, 'part': Field(str, 'of the certificate'), **own}
  return None


def names(fields: Fields) -> list[str]:
  """Returns the names of fields and of their intervals."""
  return [
    each
    for name, one in fields.items()
    for each in ([name, f'{name}_ci'] if one.over else [name])
  ]


def declared(kinds: Mapping[str, Any]) -> Fields:
  """Makes fields of types by name; one that may be missing ends in ?."""
  return {
    name.rstrip('?'): Field(kind, '', needed=True)
    if name[-1] != '?'
    else Field(kind | None, '')
    for name, kind in kinds.items()
  }


def fault(row: Mapping[str, Any], fields: Fields) -> str:
  """Says which field a row lacks or has of another type; '' if none."""
  missing = [n for n, one in fields.items() if one.required and n not in row]
  if missing:
    return f'has no {", ".join(missing)}'
  for name, one in fields.items():
    kinds = {name: one.kind} | ({f'{name}_ci': _NUMBERS} if one.over else {})
    for each, kind in kinds.items():
      if each in row and not fits(row[each], kind):
        value = shown(row[each])
        return f'has the {each} {value}, which must be {in_words(kind)}'
  return ''


def documentation(fields: Fields = RUN) -> list[list[str]]:
  """Returns a line for each field: name, type, unit, interval, meaning."""
  return [
    [f'`{name}`', kind.replace('None', 'null'), one.unit, one.over, one.meaning]
    for name, one in fields.items()
    for kind in [in_words(one.kind)]
  ]


def pick(rows: list[dict], **cell: Any) -> list[dict]:
  """Returns rows whose fields have these values; a tuple means any of it."""

  def wanted(row, name, value):
    one = row.get(name)
    return one in value if isinstance(value, tuple) else one == value

  return [r for r in rows if all(wanted(r, k, v) for k, v in cell.items())]


def group(rows: list[dict], *names: str) -> dict[tuple, list[dict]]:
  """Groups rows by the values of some fields, in the order of the rows."""
  groups: dict[tuple, list[dict]] = {}
  for row in rows:
    groups.setdefault(tuple(row[name] for name in names), []).append(row)
  return groups


def by_place(rows: list[dict]) -> dict[tuple[str, float], list[dict]]:
  """Groups rows by domain and temperature."""
  return group(rows, 'domain', 'temperature')


def by_batch(row: dict, name: str, joined: np.ufunc = np.add) -> np.ndarray:
  """Joins a field with a number for each prompt over every batch."""
  per_prompt = np.asarray(row[name], float)
  begins = range(0, len(per_prompt), row.get('batch') or 1)
  return joined.reduceat(per_prompt, begins)


def times_of(row: dict) -> tuple[np.ndarray, ...]:
  """Returns seconds and tokens, plain and of the row, by batch."""
  return (
    np.asarray(row['unit_baseline_seconds'], float),
    by_batch(row, 'unit_baseline_tokens'),
    np.asarray(row['unit_seconds'], float),
    by_batch(row, 'unit_tokens'),
  )
