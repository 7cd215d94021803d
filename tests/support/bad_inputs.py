"""Bad inputs: what is given, and the words that the one line of error has.

{} is the folder of `place` in `test_bad_input`. Nothing here reads weights.
"""


def fields() -> list[tuple[str, str, str, str]]:
  """Returns program, config, overrides and words of each case of `_FIELDS`."""
  found, program, config = [], '', ''
  for line in _FIELDS.splitlines():
    if line.endswith(':'):
      program, config = line[:-1].split()
      continue
    overrides, arrow, words = line.strip().partition(' => ')
    if arrow:
      found.append((program, config, overrides, words))
    else:
      field, *values = overrides.split()
      found += [(program, config, f'{field}={x}', field) for x in values]
  return found


# Below a program and its config: a field and bad values of it, which the error
# names; or overrides, and words of the error.
_FIELDS = r"""run tiny.py:
  target.path /nowhere {}/one.json {}/full
  draft.path /nowhere {}/full
  drafters nope no.such.load ngrm ("ngram","ngram") lm:/nowhere lm cascade 5
  drafters ngram:{} suffix:{}/target
  verifiers () tokn specjax.verify.tokn specjax.verify specjax.verify.walk
  verifiers specjax.verify.simulated:2 specjax.verify.token:1
  verifiers specjax.verify.lenience:2 specjax.verify.lenience:x lenience
  gammas 0 (1,-2) 2.5 two 12 1000000
  temperatures nan hot 1e999 -1 (0.7,0.7) (0,0.0) ()
  batch 0 3 abc 1.5
  batches 0 two
  max_new_tokens 0 10000000000
  dtype half float64
  exact bit
  target.dtype int8 float64
  draft.dtype int8 float64
  seed -1 4294967296 1180591620717411303424
  results {}/one.json {}/one.json/deeper {}/full {}/other/rows {}/config/rows
  results /proc/nowhere
  compilation_cache {}/one.json
  sampling.top_k -1 1099511627776
  sampling.top_p 0 1.5 nan
  sampling.min_p 1
  sampling.repetition_penalty 0
  sampling.presence_penalty 3
  sampling.logit_bias 3 ((1,"a"),) ((99999,1.0),)
  sampling.forbidden a 99999 (-1,)
  sampling.min_new_tokens -1 13
  prompts 3
  prompts.path /nowhere {} {}/pipe /dev/zero {}/half.jsonl
  prompts.domains prose (1,)
  prompts.field x
  prompts.form x
  prompts.chat True
  prompts.turns -1 0
  prompts.template_kwargs 3 [1]
  prompts.count 0 1000000
  prompts.length 0 -4 x 1000000
  mesh.data 0
  mesh.model 0
  mesh.processes -1
  mesh.timeout 0
  name= results= => name is
  target.path= => target.path is empty
  candidates 3
  candidates.draft.gamma=0 drafters=draft => candidates.draft.gamma
  candidates.draft.load=nope => candidates
  candidates.draft.load=specjax.verify.token => candidates
  candidates.draft.load=builtins.int => candidates
  candidates.draft.path=/nowhere => path of the drafter draft
  candidates.draft.options.policy=heuristc => did you mean 'heuristic'?
  candidates.draft.options.policy=specjax.verify.token => is no policy
  draft.policy=heuristic => draft.policy is heuristic, but there is no draft
  draft.vocabulary=9 => give draft.path, or leave draft.vocabulary out
  candidates.draft.options.policy=confidence:2 => threshold must be in
  candidates.draft.options.policy=expected:1,1,1,1 => takes cost, scoring, fade
  candidates.draft.options.policy=entropy:abc => 'entropy:abc': abc is no number
  candidates.draft.options.policy=adaedl:x,1 => 'adaedl:x,1': x,1 is no number
  candidates.draft.options.policy=learned:1,2 => takes constant, by_confidence
  candidates.draft.options.policy=builtins.min => is no policy (min
  candidates.draft.options.policy=fractions.Fraction:.5,1 => both arguments
  drafters=early_exit => exit after layer
  drafters=lm => lm:DIRECTORY
  drafters=mtp => has no next-token layer
  candidates.ngram.options={"depht":1} => candidates.ngram: specjax
  candidates.ngram.verifiers=("x.y",) => of the drafter ngram
  candidates.ngram.options={'longst':4} => candidates.ngram: specjax
  verifiers= => verifiers
  gammas=0 target.path=/nowhere => gammas
  max_new_tokens=2 => gamma of the drafter draft is 2
  batch=3 mesh.data=2 => batch is 3
  batches=(2,3) mesh.data=2 => batches has 3
  batches=(1,2) batch=2 => batches is (1, 2) and batch is 2
  batches=(1,3) => batches: 3 is more than the 2 prompts of code: raise prompts
  rounds=True => rounds is true, but weights are floats
  weights=int8 mesh.data=2 batch=2 => weights is int8, but a mesh
  quick maybe
  gama=1 => did you mean 'gammas'?
  seed.first 1
  candidates.lmx.gamma=1 => no entry 'lmx'; it has draft, ngram
  prompts.cuont=1 => did you mean 'count'?
  gammas[3]=4 => gammas
  sampling.frequency_penalty inf
  sampling.json_schema /nowhere.json
  sampling.regex=a sampling.json_schema=x => are both given: choose one
  sampling.regex=( => without its
  sampling.regex=a verifiers=simulated:0.5 => simulated accepts whatever
  sampling.regex=a{40} => shortest text that sampling.regex allows has 41
  sampling.regex=a sampling.min_new_tokens=2 => sampling.forbidden and min
  max_new_tokens=None sampling.min_new_tokens=200 => but max_new_tokens is 128
  prompts.path={}/two.jsonl prompts.turns=0 prompts.field=a => prompts.turns
  prompts.path={}/two.jsonl prompts.system=x => prompts.system
  prompts.path={}/two.jsonl prompts.template_kwargs={"a":1} => template_kwargs
  prompts.path={}/talks.jsonl prompts.turns=0 max_new_tokens=64 => max
  mesh.model=2 => mesh.data x mesh.model
  mesh.processes=2 => mesh.coordinator
  mesh.processes=2 mesh.coordinator=a:99999 => mesh.coordinator
  mesh.processes=2 mesh.process=2 => mesh.process
explain tiny.py:
  device v9 h100:x
  drafters x
  gammas 12
  timed False
predict tiny.py:
  batches (1,2)
  gammas 12
  verifiers specjax.verify.block
  mesh.model=2 => mesh is 1 x 2
generate tiny.py:
  mesh.data 2
answers tiny.py:
  prompts.path={}/short.txt results=/proc/no => results: /proc/no cannot
  prompt=x => prompt is given, but
  verifiers=lenience:0.5 => is lossy
  prompts.path=/none.jsonl => none.jsonl does not exist
  prompts.path={}/talks.jsonl prompts.turns=0 => prompts.turns is 0
chat tiny.py:
  prompts.system x
  mesh.model=2 => mesh is 1 x 2
inspect tiny.py:
  batch 3
  seed -1
  prompts.path=/nowhere sampling.forbidden=9999 => sampling.forbidden
parity parity.py:
  temperatures 1
  dtype int8
  batch 3
  against specjax.bench.comparisons.plane specjax.bench.comparisons.precision
  against=batches => plain, text (did
  against=batch => batch is 1
  against=dtype other_dtype=float32 => other_dtype
  against=dtype other_dtype=half => other_dtype
  against=dtype other_dtype=auto => other_dtype
  against=text => text is empty
  against=text text=/no/such => text: /no/such
  against=specjax.bench.comparisons.text text={}/latin.txt => text
certify configs/certify.py:
  rows 0
  rounds 0
  level nan
  boost inf
  rule=token drafter=ngram => rule and drafter are given
  rule=token policy=heuristic => rule and policy are given
  rule=token dtype=float16 => dtype=float16 is of the whole
  policy=heuristic boost=1.2 => boost=1.2 is of the whole
  seed -1
  name a/b
step_costs experiments/step_costs.py:
  dtype int8
  gamma 0
  gammas (1,)
  sweeps x () experiments.step_costs.nothing
  repeats 0
  maxima (128,10)
  rates (1.0,) nan
  seed -1
  target.width 0
  target.num_kv_heads 3
  path /nowhere
  megabytes 100000000
continuous_batching experiments/continuous_batching.py:
  shortest 0 999
  prompts.turns 0
  chunks ()
  loads ((4,0),)
  temperatures (0.0,1.0)
arrivals experiments/arrivals.py:
  requests=17 skipped=2 => requests is 17, of which 2 are skipped
  fractions=(0.0,) => fractions must be numbers above 0
  skipped -1
  chunk 0
  shortest=999 => lower one or raise
  temperatures=(0.0,1.0) => temperatures must be a single one
long_contexts experiments/long_contexts.py:
  window 0
  sinks -1
  contexts=() => contexts must have different sizes
  batches=(1,1) => batches must have different sizes
  rates=(1.5,) => from 0 to 0.999
  dtype int8
  contexts=(1099511627776,) => GB for caches alone
prompt_lengths experiments/prompt_lengths.py:
  lengths () (4,257)
optimal_acceptance experiments/optimal_acceptance.py:
  drafts=() => drafts is empty
  drafts=(2,) kept=1 => kept is 1, but drafts 2
constrained experiments/constrained.py:
  languages {"none":"x"}
  languages={"x":"/nowhere"} => sampling.json_schema: /nowhere
  batch 2
  sampling.regex=a => name languages instead
  verifiers ("token","block")
draft_lengths experiments/draft_lengths.py:
  costs () (-0.1,)
  costs=(0.0,) scoring=0 => nor both 0
  folds 1
  gammas=(1,2) => drafters
  verifiers block
contest experiments/contest.py:
  kinds ("mlp",)
  steps () (20,)
  kinds=("medusa",) gammas=(9,) => gammas
  batch 0
against experiments/against.py:
  batch 2
  prompts.turns 2
  drafters x
  drafters=ngram => at least one must load
step_costs experiments/step_costs.py:quantized:
  paths () /nowhere
train configs/embedded_pair.py:
  folder {}/one.json /proc/nowhere
  vocab_size 10
  tokenizer_sample 0
  every 0
  seed 4294967296
  target.width 0
  target.num_kv_heads 3
  target.head_dim 31
  target_training.batch 0
  target_training.length -4
  target_training.schedule () 3 ((5,1.0),(5,0.0)) ((5,1e999),)
  target_training.clip 0
  target_training.weight_decay nan
  drafts.widths () 48 (64,64)
  mixture.code -1
  folder= => folder is empty
  max_positions=16 => target_training.length
  drafts.texts.prompt_length 300
  drafts.texts.greedy_share 2
  drafts.texts.count=1 => drafts.texts
  packages=False => mixture.packages is 0.15
  packages=False mixture.packages=0 => mixture.package_documentation is 0.08
train heads.py:
  target /nowhere {}/one.json {}/full
  trainable x specjax.verify.token
  folder {}/one.json
  data {}/one.json
  optimization.batch 0
  mixture.packages 0.1
  share 1.5 nan
  optimization.curve=wave => curve: 'wave' is unknown
  optimization.accumulate 0
  optimization.patience -1
  optimization.dtype int8
  divergence=far => divergence: 'far' is unknown
  devices=9 => devices must be from 1 to
  examples.answer=x => examples.answer is given, but
  examples.prompts.path /none.jsonl
  dtype int8
  texts.length 500
  held_out.depth 0 8
  held_out.temperatures hot -1 () (1,1.0)
  held_out.seed -1
  folder= => folder is empty
  texts.count=2 => texts
  refresh 0
  own_share=0.6 => share + own_share is 0.5 + 0.6
  own_share=0.5 own_texts.count=2 => own_texts
  own_share=0.5 own_texts.length=16 => own_texts
  own_texts.prompt_length 300
train configs/online.py:
  rounds=4 => schedule ends at step 300, but rounds x updates are 4 x 10
  memory 0
  depth=64 => depth is 64, but must be below new_tokens, which is 64
  temperature -1 nan 1e999
  seed -1
  seed=4294967293 => choose one below 4294967266
  prompts.length 0 -4
  target /none
  trainable=none => trainable: 'none' is unknown
  prompts.domains ("law",)
train configs/counts.py:
  texts=nowhere.jsonl => texts: nowhere.jsonl does not exist
  successors -1
  successors=3000 => successors is 3000, but the target has 2048
  every 0
  target nowhere"""

# A program and its arguments, and words of the error.
ARGUMENTS = r"""
run => no config is given
run --config => --config names no file
run --config=nowhere.py --help => --config
run quikstart => did you mean quickstart?
run {}/tiny.py more => more: arguments
run {}/tiny.py --foo=1 => no field 'foo'
run {}/tiny.py --batch => --batch=VALUE
run {}/tiny.py -q => -q is no flag
run {}/tiny.py -q=3 => -q=3 is no flag
run {}/types.py => candidates.draft.options.inner.gamma
run {}/syntax.py => (syntax.py, line 1)
run {}/bug.py => bug.py, line 2: KeyError
run {}/function.py => has no function get_config
run {}/nothing.py => --config gives nothing
run {}/tiny.py:part => has no parts
run configs/drafters.py:x => --config
run configs/embedded_pair.py => gives Recipe
run configs/papers.py:chen/x => --config
run configs/papers.py:specdecpp => cannot run
certify {}/certificate.py => rows
generate {}/tiny.py => prompt is empty
inspect pair => target.path
step_costs :decoding => no GPU
paper_costs --rates=(2.0,) => from 0 to 1
paper_costs --gammas=(0,) => gammas
paper_costs --batches=() => batches is empty
rollouts --parts=("gradient",) => parts
train {}/tiny.py => or give it to experiments.run
tables /nowhere => /nowhere
tables a b => unrecognized arguments: b
tables results --format=xml => 'xml'
tables --config={}/tiny.py => gives Experiment
tables {}/cut => rows.jsonl: line 2
tables {}/binary => rows.jsonl is no text
report => folder
report {} => folder
report {}/cut/rows => line 2
compare {}/a => folder
export {}/a {}/b --target {}/target --tokens 0 => --tokens
loading_memory --megabytes 0 => --megabytes
loading_memory --dtype int9 => --dtype
"""

# Loads of `own_drafters`, and what they break; no weights of the target.
OWN = (
  ('nothing', 'must return a specjax.LoadedDrafter, got NoneType'),
  ('no_drafter', 'make(1) must return a specjax.Drafter, got str'),
  ('no_path', 'too many positional arguments'),
  ('no_pair', 'must return (Draft, state), got NoneType'),
  ('no_draft', 'must return (Draft, state), got (NoneType, tuple)'),
  ('few_tokens', 'tokens as integers[1, 1], got int32[1]'),
  ('many_tokens', 'tokens as integers[1, 1], got int32[1, 2]'),
  ('listed_tokens', 'tokens as integers[1, 1], got list'),
  ('float_tokens', 'tokens as integers[1, 1], got float32[1, 1]'),
  ('square_size', 'size as integers[1], got int32[1, 1]'),
  ('flat_parents', 'parents as integers[1, 1], got int32[1]'),
  ('other_vocabulary', 'must have the 2048 entries of the target, got 11'),
  ('integer_probs', 'probs as floats[1, 1, 2048], got int32[1, 1, 2048]'),
  ('flat_probs', 'probs as floats[1, 1, 1], got float32[1, 1]'),
  ('grows', 'commit must return a state of the shapes that init gave'),
  ('short', 'it has 20 positions, but a prompt and max_new_tokens make 28'),
)
