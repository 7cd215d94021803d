"""What papers claim that the embedded pair can speak to."""

import dataclasses
from collections.abc import Callable, Iterator

from experiments.papers import claims
from experiments.papers import claims_of_drafters as drafters
from experiments.papers.judgement import Evidence, Rows


@dataclasses.dataclass(frozen=True)
class Claim:
  """A sentence of a paper, and how rows speak to it.

  Attributes:
    text: the claim.
    source: of it.
    what: what is estimated in each cell.
    look: rows by folder -> evidence.
  """

  text: str
  source: str
  what: str
  look: Callable[[Rows], Iterator[Evidence]]


LEVIATHAN, CHEN = 'arXiv:2211.17192', 'arXiv:2302.01318'
CLAIMS = (
  Claim(
    'The law of the output is the law of the target',
    f'{LEVIATHAN}, {CHEN}, 2403.10444, 2310.15141, 2402.12374',
    'whole texts by enumeration, error below 1e-12',
    claims.exact_laws,
  ),
  Claim(
    'Greedy texts are those of plain decoding, up to ties',
    f'{LEVIATHAN}, {CHEN}',
    'texts that differ and are no ties',
    claims.greedy,
  ),
  Claim(
    'alpha rises from unigrams to bigrams to models, and with their size',
    f'{LEVIATHAN}, Table 3',
    'difference of alpha, next less this',
    claims.by_size,
  ),
  Claim(
    'alpha at temperature 0 is above alpha at temperature 1',
    f'{LEVIATHAN}, Table 3 (with an exception); arXiv:2401.06706, Table 8',
    'difference of alpha',
    claims.by_temperature,
  ),
  Claim(
    f'tau is what Equation 1 gives at alpha, within {claims.MARGIN:.0%}',
    f'{LEVIATHAN}, Equation 1',
    'tau over Equation 1, less 1',
    claims.equation_one,
  ),
  Claim(
    'The fastest draft is neither the smallest nor the largest',
    f'{LEVIATHAN}, Table 2 (there the smallest)',
    'difference of speed-ups',
    claims.middle_size,
  ),
  Claim(
    'Drafts can be too long: gamma 4 is faster than gamma 8',
    f'{CHEN}, Figure 1',
    'difference of speed-ups',
    claims.long_drafts,
  ),
  Claim(
    'tau / (gamma + 1) falls with gamma',
    f'{CHEN}, Figure 1',
    'fall of tau / (gamma + 1)',
    claims.share_of_a_step,
  ),
  Claim(
    "Training on the target's own text raises tau",
    'arXiv:2310.08461, Table D.1',
    'difference of tau, after less before',
    claims.distilled,
  ),
  Claim(
    'Block verification gives more tokens than token verification',
    'arXiv:2403.10444, Table 1',
    'difference of tau',
    claims.block,
  ),
  Claim(
    'Its gain grows with gamma',
    'arXiv:2403.10444, Figure 3',
    'difference of the relative gains',
    claims.block_gain,
  ),
  Claim(
    'The two are equal at gamma 1 and at temperature 0',
    'arXiv:2403.10444',
    'target calls of every prompt',
    claims.block_equal,
  ),
  Claim(
    'More candidates of a place raise alpha',
    'arXiv:2401.06706, Table 8',
    'difference of alpha under the rule',
    claims.more_candidates,
  ),
  Claim(
    'Candidates without replacement beat those with',
    'arXiv:2401.06706, Table 4; arXiv:2402.12374',
    'difference of alpha under the rule',
    claims.replacement,
  ),
  Claim(
    'Lookup gains more on text that copies than on free text',
    'arXiv:2401.07851; arXiv:2311.08252',
    'difference of tau, not paired',
    claims.lookup,
  ),
  Claim(
    'alpha rises as lenience falls',
    f'{LEVIATHAN}, Table 5',
    'difference of alpha under the rule',
    claims.lenience,
  ),
  Claim(
    "A head on the target's features gives more tokens than the best "
    'independent draft of one layer',
    'arXiv:2503.01840; arXiv:2401.15077',
    'difference of tau; in brackets what a draft of each costs, in plain '
    'steps: the best of those drafts that cost as much as the head, or of '
    'all where none does',
    drafters.over_independent,
  ),
  Claim(
    'EAGLE-3 gives more tokens than EAGLE-1',
    'arXiv:2503.01840, Table 1',
    'difference of tau',
    drafters.over_eagle1,
  ),
  Claim(
    'Trees give more tokens than chains',
    'arXiv:2401.15077, Table 5',
    'difference of tau',
    drafters.trees_over_chains,
  ),
  Claim(
    'Trees made anew at every step give more than fixed ones',
    'arXiv:2406.16858, Table 1',
    'difference of tau',
    drafters.dynamic_trees,
  ),
  Claim(
    'Acceptance falls less along a draft of EAGLE-3 than of EAGLE-1',
    'arXiv:2503.01840',
    'fall of the conditional acceptance from the first to the last place, '
    'EAGLE-1 less EAGLE-3',
    drafters.flatter,
  ),
  Claim(
    'n-alpha drops once and is then flat',
    'arXiv:2401.15077, Table 2',
    'fall of n-alpha of EAGLE-1',
    drafters.drops_once,
  ),
  Claim(
    'Distilled drafts give more tokens than undistilled ones',
    'arXiv:2310.08461, Table D.1',
    'difference of tau; the control was trained as long as the distilled '
    'one, by next tokens',
    drafters.distilled,
  ),
  Claim(
    'Text of the models is better to distil on than a fixed set',
    'arXiv:2310.08461, Figure 4',
    'difference of tau, for each divergence',
    drafters.model_text,
  ),
  Claim(
    'Total variation is not the best divergence to distil by',
    'arXiv:2310.08461, Figure 4',
    'difference of tau, the best of the others less it',
    drafters.total_variation_is_not_best,
  ),
  Claim(
    "Medusa's tau is 1 and the sum of the products of the heads' "
    f'accuracies, within {claims.MARGIN:.0%}',
    'arXiv:2401.10774, section 3.3',
    'tau over that sum, less 1; both are drawn anew for the interval',
    drafters.product_of_heads,
  ),
  Claim(
    'Typical acceptance takes more than exact verification',
    'arXiv:2401.10774, section 2.3.1',
    'difference of tau',
    drafters.typical,
  ),
  Claim(
    'Earlier exits accept less and cost less',
    'arXiv:2404.16710, Tables 5 and 10',
    'differences of alpha, and of the cost of a draft in plain steps',
    drafters.earlier_exits,
  ),
  Claim(
    'An adapter behind the exit raises acceptance',
    'arXiv:2404.18911',
    'difference of alpha',
    drafters.adapters,
  ),
  Claim(
    'Lookup in a corpus too gives more than in the text alone',
    'arXiv:2311.08252, Table 2',
    'difference of tau',
    drafters.retrieval,
  ),
  Claim(
    'Several places of the text give more than one',
    'arXiv:2311.08252',
    'difference of tau',
    drafters.several_places,
  ),
  Claim(
    'Drafts cost less when they are speculated themselves',
    'arXiv:2308.04623, Table 1',
    'difference of the cost of a draft, in plain steps',
    drafters.staged,
  ),
  Claim(
    'The target in 8 bits agrees with it more than a trained draft',
    'arXiv:2410.11305',
    'difference of alpha',
    drafters.quantized,
  ),
  Claim(
    'Drafts that adapt their length are faster than constant ones',
    'arXiv:2405.19715; arXiv:2405.04304',
    'difference of speed-ups',
    drafters.adaptive,
  ),
)
# Claims that nothing here can speak to yet, and why.
NOT_RUN = (
  (
    'The naive rule accepts less than multi-step verification',
    'arXiv:2305.09781, Table 3',
    'the rule is not in the project',
  ),
  (
    'Distilling online raises alpha',
    'arXiv:2310.07177',
    'the trainer is not in the project',
  ),
)
