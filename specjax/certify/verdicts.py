"""The verdict on one rule, drafter or policy, and the laws it may break."""

import dataclasses
import re
from typing import Any

from specjax.certify.case_rows import Row, row_of
from specjax.errors import UserError


@dataclasses.dataclass(frozen=True)
class Law:
  """What must hold, and how it is said that it does not."""

  holds: str
  broken: str


LAWS = {
  1: Law(
    'tokens are drawn from the probabilities that a draft states',
    'tokens were not drawn from the probabilities that a draft states',
  ),
  2: Law('a drawn token stays', 'a drawn token was dropped'),
  3: Law(
    'the memory is what reading the text again would make',
    'the memory is not what reading the text again would make',
  ),
  4: Law(
    'shapes and programs are fixed, and the host is not asked',
    'shapes or programs change, or the host is asked',
  ),
  5: Law(
    'the probabilities of a draft are a distribution',
    'the probabilities of a draft are no distribution',
  ),
  6: Law(
    'every draft has coins of its own', 'a draft does not have coins of its own'
  ),
  7: Law(
    'accept gives chances from 0 to 1',
    'accept gives no chance from 0 to 1',
  ),
  8: Law('rest gives a distribution', 'rest gives no distribution'),
}
EXACT = 'exact'


def law_row(law: int, holds: bool | None, detail: str = '') -> Row:
  """A row of a law; `holds` is None where it says nothing of this thing."""
  says = LAWS[law].holds
  return row_of('law', law=law, says=says, holds=holds, detail=detail)


def planted_row(bug: str, applies: bool, caught: bool, detail: str) -> Row:
  return row_of(
    'planted', bug=bug, applies=applies, caught=caught, detail=detail
  )


@dataclasses.dataclass
class Verdict:
  """What a trial ends in.

  Attributes:
    text: 'exact', or what is wrong.
    counterexample: the smallest one, as numbers.
    notes: what was not looked at, and why.
  """

  text: str = EXACT
  counterexample: dict[str, Any] | None = None
  notes: list[str] = dataclasses.field(default_factory=list)

  @property
  def exact(self) -> bool:
    return self.text == EXACT

  def breaks(self, law: int, what: str = '') -> None:
    detail = f' ({what})' if what else ''
    self.text = f'breaks law {law}: {LAWS[law].broken}{detail}'

  def lossy(self, distance: float, where: str) -> None:
    self.text = f'lossy: total variation {distance:.3g} {where}'

  def undecided(self, why: str) -> None:
    self.text = f'undecided: {why}'


def need_seen(verdict: Verdict, planted: list[Row]) -> None:
  """A planted bug that changes something and is not found leaves it open."""
  missed = [r['bug'] for r in planted if r['applies'] and not r['caught']]
  if verdict.exact and missed:
    verdict.undecided(f'a planted bug was not seen: {missed[0]}')
  if not any(row['applies'] for row in planted):
    verdict.notes.append(
      'No planted bug changes anything here, so nothing shows what its tests '
      'would see.'
    )


def failed(error: Exception) -> str:
  """What a user's function raised, in one short line."""
  line = str(error).strip().split('\n')[0]
  line = re.sub(r' at 0x[0-9a-f]+', '', line)
  return f'{type(error).__name__}: {line[:200]}'


class Refusing:
  """Makes a UserError of whatever a user's own function raises.

  Args:
    who: the field and the name of the function.
    what: of it was called.
  """

  def __init__(self, who: str, what: str):
    self.begin = f'{who}: {what}'

  def __enter__(self) -> None:
    pass

  def __exit__(self, kind, error, trace) -> None:
    if isinstance(error, Exception) and not isinstance(error, UserError):
      raise UserError(f'{self.begin} raised {failed(error)}') from error
