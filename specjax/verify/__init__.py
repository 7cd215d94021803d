"""Verification rules, and the one walk that turns coins into a verdict.

A rule is two deterministic functions (`types.Rule`). The loop draws from them
and `specjax certify` multiplies them out, so what is enumerated is what
runs.

  rule        draft                      output   source
  token       chain                      exact    arXiv:2211.17192, 2302.01318
  block       chain                      exact    arXiv:2403.10444
  recursive   any tree                   exact    arXiv:2305.09781, 2402.12374
  k_seq       tree of i.i.d. siblings    exact    arXiv:2310.15141
  importance  tree of i.i.d. siblings    exact    after arXiv:2410.18234
  traversal   any tree                   exact    arXiv:2505.12398
  hub         siblings with a hub        exact    arXiv:2411.05289
  multi_path  independent chains         exact    arXiv:2602.16961
  naive       any tree                   exact    arXiv:2305.09781
  observe     any                        exact    accepts nothing: for alpha
  lenience    chain                      lossy    arXiv:2211.17192, A.5
  typical     any tree                   lossy    arXiv:2401.10774
  simulated   any tree                   lossy    for measuring speed
"""

from specjax.verify.chains import block as block
from specjax.verify.chains import token as token
from specjax.verify.hub import hub as hub
from specjax.verify.importance import importance as importance
from specjax.verify.judge import chance as chance
from specjax.verify.judge import drafted_probs as drafted_probs
from specjax.verify.judge import judge as judge
from specjax.verify.judge import overlap as overlap
from specjax.verify.judge import walk as walk
from specjax.verify.lossy import lenience as lenience
from specjax.verify.lossy import observe as observe
from specjax.verify.lossy import simulated as simulated
from specjax.verify.lossy import typical as typical
from specjax.verify.multi_path import multi_path as multi_path
from specjax.verify.traversal import traversal as traversal
from specjax.verify.trees import k_seq as k_seq
from specjax.verify.trees import naive as naive
from specjax.verify.trees import recursive as recursive
