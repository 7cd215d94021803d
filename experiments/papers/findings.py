"""Which claims hold on the embedded pair, and on a real one: two pages.

A claim is looked at in every cell where committed rows speak to it. It *holds*
in a cell where the 95% interval lies on its side of the boundary, *does not
hold* where it lies on the other, and is *undecided* where it includes it. A
claim is judged by the mean of its cells, and not by the one cell in forty that
errs on either side.

Cells are taken as a sample of those that a claim speaks of (random effects),
each with the same weight. The interval is that of Hartung and Knapp (2001,
Statistics in Medicine 20) for equal weights, Student's of the mean of cells,
and never narrower than if the cells did not differ (Roever, Knapp and Friede
2015, BMC Medical Research Methodology 15). Cells on common prompts err
together, which a spread between them does not show: their mean covariance,
from what each prompt adds to each cell, is added.
"""

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy import special

from experiments.papers import claims, real_pair
from experiments.papers.claims import FAILS, HOLDS, UNDECIDED, Claim, Finding
from specjax.reports.markdown import estimated, markdown, paragraph
from specjax.stats import fit_tests, metrics
from specjax.stats.folders import Rows

_OUTCOMES = (HOLDS, FAILS, UNDECIDED)
_ONE_SIDE = (1 - metrics.LEVEL) / 2


class Pooled(NamedTuple):
  """The mean of the cells of a claim."""

  estimate: metrics.Estimate
  spread: float  # standard deviation between cells, beyond chance
  cells: int  # whose error is known


def _shared(one: Finding, other: Finding) -> float:
  """Covariance of two cells: what they have in common are prompts."""
  pairs = itertools.product(
    zip(one.prompts, one.estimate.influences, strict=False),
    zip(other.prompts, other.estimate.influences, strict=False),
  )
  return sum(
    float(a @ b)
    for (name, a), (other_name, b) in pairs
    if name == other_name and len(a) == len(b)
  )


def pool(findings: Sequence[Finding]) -> Pooled:
  """The mean of the effects of some cells, those whose error is known.

  It is 0 where all prompts say the same: they have no interval, but an effect.
  """
  known = [one for one in findings if np.isfinite(one.estimate.error)]
  count = len(known)
  if not count:
    mean = float(np.mean([one.estimate.value for one in findings]))
    return Pooled(metrics.Estimate(mean), np.nan, 0)
  if count == 1:
    return Pooled(known[0].estimate, np.nan, 1)
  estimates = [one.estimate for one in known]
  values = np.array([estimate.value for estimate in estimates])
  own = float(np.mean([estimate.error**2 for estimate in estimates]))
  pairs = itertools.combinations(known, 2)
  common = max(float(np.mean([_shared(a, b) for a, b in pairs])), 0.0)
  apart = max(float(values.var(ddof=1)), own - common)
  parts = np.array([apart / count, common])
  freedom = min((e.freedom for e in estimates if e.error), default=np.inf)
  shares = parts**2 / (count - 1, freedom)
  variance, middle = parts.sum(), float(values.mean())
  error = float(np.sqrt(variance))
  freedom = variance**2 / shares.sum() if variance else np.inf
  reach = error * metrics.student(freedom)
  pooled = metrics.Estimate(
    middle, middle - reach, middle + reach, error, freedom
  )
  spread = np.sqrt(max(values.var(ddof=1) - (own - common), 0.0))
  return Pooled(pooled, float(spread), count)


def _chance(finding: Finding) -> float:
  """The chance of so much against a claim in a cell where it just holds."""
  estimate = finding.estimate
  far = -estimate.value
  if finding.within is not None:
    far = abs(far) - finding.within
  if not estimate.error:
    return float(far <= 0)
  return float(special.stdtr(estimate.freedom, -far / estimate.error))


def contradictions(findings: Sequence[Finding]) -> int:
  """Cells that speak against their claim beyond what chance explains.

  With so many cells one that does so by chance is likely. Here the chance that
  any does is that of one side of one interval (Holm 1979).
  """
  known = [one for one in findings if one.estimate.interval is not None]
  return sum(fit_tests.holm(list(map(_chance, known)), _ONE_SIDE))


def by_kind(findings: list[Finding]) -> dict[str, list[Finding]]:
  """Findings that are estimates, by their kind; '' where there is only one."""
  kinds: dict[str, list[Finding]] = {}
  for finding in findings:
    if not finding.exact:
      kinds.setdefault(finding.kind, []).append(finding)
  return kinds


def overall(findings: list[Finding]) -> str:
  """Returns the outcome of a claim, by its pooled effects.

  Where nothing is estimated every cell counts.
  """
  outcomes = {finding.outcome for finding in findings if finding.exact}
  for same_kind in by_kind(findings).values():
    outcomes.add(same_kind[0].judge(pool(same_kind).estimate))
  if FAILS in outcomes:
    return FAILS
  return HOLDS if outcomes == {HOLDS} else UNDECIDED


def _shown(finding: Finding) -> str:
  if finding.exact:
    return 'so' if finding.estimate.value > 0 else 'not so'
  return estimated(finding.estimate, '+.3f')


def pooled(findings: list[Finding]) -> list[str]:
  """Sentences on all cells of a claim together; none where nothing is."""
  sentences = []
  for kind, same_kind in by_kind(findings).items():
    estimate, spread, count = pool(same_kind)
    name = f'Pooled, {kind}' if kind else 'Pooled'
    line = (
      f'{name}: {estimated(estimate, "+.3f")} ({same_kind[0].judge(estimate)}'
    )
    line += f'; {count} cells'
    if np.isfinite(spread):
      line += f', spread between cells {spread:.3f}'
    against = contradictions(same_kind)
    sentences.append(f'{line}; {against} contradict the claim).')
  return sentences


class Page(NamedTuple):
  """Claims of one pair of models.

  Attributes:
    file: its name.
    title: its heading.
    about: which pair it is, and what that means for the findings.
    claims: those that are looked at.
  """

  file: str
  title: str
  about: str
  claims: Sequence[Claim]


PAGES = (
  Page(
    'findings.md',
    'Published claims at the scale of the embedded pair',
    'The pair is small (11.5M parameters) and its text is code, documentation '
    'and tables; what fails here may hold elsewhere, and the other way round.',
    tuple(claims.CLAIMS.values()),
  ),
  Page(
    'real_findings.md',
    'What is promised, on a pair that people run',
    'The target is Qwen2.5-Coder-1.5B-Instruct (Q4_K_M) in chat form, its '
    'sibling has 0.5B parameters (Q4_K_M), the draft of another vocabulary is '
    'SmolLM2-135M-Instruct (Q4_1); all are held in the bits of their files, '
    'with activations rounded to eight bits. Cells with times name the folder '
    'of their rows: `humaneval` is of an AMD processor with AVX-512, those '
    'that end in `intel` are of an Intel one, and those that end in `avx2` of '
    'an AMD one without. Cells that name two batches are of the Intel '
    'processor. Cells of lookup name the file of their target; Gemma-3-270M '
    'was not tuned on chats and has bare prompts.',
    real_pair.CLAIMS,
  ),
)
_HEAD = """
Generated by `python -m experiments.tables results` from the rows of this
folder. A cell *holds* where its 95% interval lies on the side of the claim,
does not where it lies on the other, and is undecided where it includes the
boundary. A claim is judged by the *pooled effect*: the mean of its cells, each
of the same weight, with a 95% interval that has the spread between cells and
the prompts that cells have in common in it (random effects; the method is in
`experiments/papers/findings.py`). It speaks of cells like these; read those
below. A cell *contradicts* a claim where it does so beyond what chance explains
among so many cells (Holm's method, at the level of one cell's interval). The
claims are many too, and nothing is corrected for that.
"""


def _counts(by_claim: list[list[Finding]]) -> str:
  """How many claims hold, of those that have cells, and in how many cells."""
  known = [findings for findings in by_claim if findings]
  judged = [overall(findings) for findings in known]
  cells = [finding.outcome for findings in known for finding in findings]
  holds, fails, undecided = (judged.count(outcome) for outcome in _OUTCOMES)
  return paragraph(
    f'Of {len(known)} claims that the rows speak to {holds} hold, '
    f'{fails} do not and {undecided} are undecided. Of their {len(cells)} '
    f'cells {cells.count(HOLDS)} hold and {cells.count(FAILS)} do not.'
  )


def _line(claim: Claim, findings: list[Finding]) -> list[str]:
  """The line of a claim in the first table."""
  if not findings:
    return [claim.text, claim.source, 'not run', *['-'] * 5]
  outcomes = [finding.outcome for finding in findings]
  kinds = by_kind(findings).values()
  effects = [estimated(pool(one).estimate, '+.3f') for one in kinds]
  against = sum(map(contradictions, kinds))
  return [
    claim.text,
    claim.source,
    overall(findings),
    '; '.join(effects) or '-',
    *(str(outcomes.count(outcome)) for outcome in _OUTCOMES),
    str(against) if effects else '-',
  ]


def _section(claim: Claim, findings: list[Finding]) -> str:
  """Every cell of a claim."""
  table = [[one.cell, _shown(one), one.outcome] for one in findings]
  quantity = f'{claim.quantity[0].upper()}{claim.quantity[1:]}.'
  return (
    f'\n### {claim.text}\n\n{" ".join([quantity, *pooled(findings)])}\n\n'
    f'{markdown(["cell", "estimate", "outcome"], table)}\n'
  )


def text(rows: Rows, page: Page) -> str:
  """The findings as one page."""
  by_claim = [claim(rows) for claim in page.claims]
  pairs = list(zip(page.claims, by_claim, strict=True))
  head = ['claim', 'source', 'here', 'pooled effect', 'cells: hold', 'do not']
  head += ['undecided', 'contradict']
  table = markdown(head, [_line(*pair) for pair in pairs])
  details = ''.join(_section(*pair) for pair in pairs if pair[1])
  begin = f'# {page.title}\n\n{_counts(by_claim)}\n{_HEAD}'
  return f'{begin}\n{paragraph(page.about)}\n\n{table}\n{details}'
