"""Spec-Bench: speed-ups of its tasks, greedy, float16, batch 1.

  python -m experiments.run --config configs/papers/spec_bench.py:7b \\
    --config.prompts.path=question.jsonl

Parts: 7b, 13b, 33b (Vicuna, A100). SpS (Vicuna-68M drafts), PLD (prompt lookup)
and Recycling need nothing else: --config.drafters="('sps', 'ngram',
'recycling')". EAGLE's heads are the published ones; Medusa's, and EAGLE-3's but
for 13b, are to be trained. The tree of Recycling is ours, of 80 nodes. REST,
Hydra, Lookahead and SAMD have no cell here. Ours are defined as theirs: over
all turns, the speed-up is a ratio of means of the questions' rates, and tau is
a mean over steps. `configs/spec_bench.py` is for other targets.
"""

from configs.papers import HEADS, Paper, beside_eagle
from experiments.papers.published import Metric, Published
from specjax.bench.config import Checkpoint, Prompts

# Vicuna v1.1 and later, as FastChat writes it; its tokenizer has none.
_VICUNA = (
  "{{ bos_token }}{% for m in messages %}{% if m.role == 'system' %}"
  "{{ m.content + ' ' }}{% elif m.role == 'user' %}"
  "{{ 'USER: ' + m.content + ' ' }}{% else %}"
  "{{ 'ASSISTANT: ' + m.content + eos_token }}{% endif %}{% endfor %}"
  "{% if add_generation_prompt %}{{ 'ASSISTANT:' }}{% endif %}"
)
_SYSTEM = (
  'A chat between a curious user and an artificial intelligence assistant. The '
  "assistant gives helpful, detailed, and polite answers to the user's "
  'questions.'
)
_MT_BENCH = (
  'writing', 'roleplay', 'reasoning', 'math', 'coding', 'extraction', 'stem',
  'humanities',
)  # fmt: skip
_DOMAINS = {
  'multi_turn': _MT_BENCH,
  'translation': 'translation',
  'summarization': 'summarization',
  'qa': 'qa',
  'math': 'math_reasoning',
  'rag': 'rag',
}
_EVERY = (*_MT_BENCH, *list(_DOMAINS.values())[1:])
_METHODS = {
  'SpS': 'sps',
  'PLD': 'ngram',
  'Recycling': 'recycling',
  'Medusa': 'medusa',
  'EAGLE': 'eagle',
  'EAGLE2': 'eagle2',
  'EAGLE3': 'eagle3',
}


def leaderboard(part: str) -> Published:
  return Published(
    target=Checkpoint(f'lmsys/vicuna-{part}-v1.3'),
    candidates=beside_eagle(f'vicuna-{part}', *_METHODS.values()),
    temperatures=(0.0,),
    prompts=Prompts(
      count=80,
      chat=True,
      system=_SYSTEM,
      template_kwargs={'chat_template': _VICUNA},
      turns=0,
    ),
    max_new_tokens=1024,
    table='Leaderboard.md',
    part={'device': 'A100', 'target': f'Vicuna-{part.upper()}-v1.3'},
    axes={'method': 'drafter'},
    names={'method': _METHODS},
    compared=(
      Metric('mean_accepted_tokens', 'tau_per_step'),
      *(
        Metric(f'{column}_speedup', 'speedup_of_rates', {'domain': domain})
        for column, domain in (*_DOMAINS.items(), ('overall', _EVERY))
      ),
    ),
    needs=(
      f'Vicuna-{part.upper()} v1.3 and Vicuna-68M',
      HEADS,
      'question.jsonl of Spec-Bench',
      'an A100 or like it',
    ),
  )


get_config = Paper('spec_bench', {'': (leaderboard, ('7b', '13b', '33b'))})
