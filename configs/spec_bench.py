"""Spec-Bench with your own target: 480 prompts of 13 categories, every turn.

  specjax run configs/spec_bench.py \\
    --target.path=TARGET --prompts.path=question.jsonl

question.jsonl is that of the benchmark (Xia et al., arXiv:2401.07851). Each
category is a domain with a table of its own: five tasks of 80 questions, and
the eight categories of MT-Bench, 10 questions of two turns each. Lookup drafts;
a draft comes with --draft.path=DRAFT. A category is kept as soon as it
is done, and the same command goes on where it was stopped.

A target without a chat template needs --prompts.chat=False, or one with
--prompts.template_kwargs="{'chat_template': '...'}". Without times,
many at once: --timed=False --batch=10.

MT-Bench alone and SPEED-Bench (arXiv:2604.09557; the file that its own
prepare_data.py writes) run likewise: name their file, and
--name=speed_bench --max_new_tokens=4096.

With a target of 3M parameters without a template, 16 new tokens, a batch of 10
and no times it takes two minutes of two cores (1 GB of memory).
"""

from specjax.bench.config import Candidate, Checkpoint, Experiment, Prompts


def get_config() -> Experiment:
  return Experiment(
    name='spec_bench',
    target=Checkpoint(),
    candidates={'ngram': Candidate('ngram', 10)},
    temperatures=(0.0,),
    prompts=Prompts(count=80, chat=True, turns=0),
    max_new_tokens=1024,
  )
