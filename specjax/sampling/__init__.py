"""From logits to the one distribution that is drafted, verified and drawn.

  logit bias > repetition > presence, frequency > forbidden > minimum length
    > constraint > temperature > top-k > top-p > min-p

The order is that of Hugging Face `generate`; at temperature 0 the distribution
is one-hot and the last four are skipped. p and q go through the same function:
this is what makes any of these settings exact (Leviathan et al.,
arXiv:2211.17192, section 2.2). Where a stage looks at the text, a drafted
token's ancestors are part of that text.

Sampling must not eat the speed-up: no sort, no Gumbel noise over the
vocabulary, two coins a draw.
"""

from specjax.sampling.automaton import Automaton as Automaton
from specjax.sampling.drawing import coins as coins
from specjax.sampling.drawing import draw as draw
from specjax.sampling.drawing import uniform as uniform
from specjax.sampling.logits import history as history
from specjax.sampling.logits import process as process
from specjax.sampling.logits import remember as remember
from specjax.sampling.predictions import Predicted as Predicted
from specjax.sampling.predictions import behind as behind
from specjax.sampling.probs import distribution as distribution
from specjax.sampling.probs import distributions as distributions
from specjax.sampling.probs import next_distribution as next_distribution
from specjax.sampling.values import check as check
from specjax.sampling.values import make as make
from specjax.types import History as History
from specjax.types import Sampling as Sampling
