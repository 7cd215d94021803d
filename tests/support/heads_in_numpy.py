"""Published heads restated in numpy, by the names of their published tensors.

Whole texts at once, without a cache: position by position as the papers and the
published modules define them. Below, `logits` [K, V] are those of the body of a
head and `hidden` [K, E] is what the output layer read.
"""

import numpy as np


def rms_norm(x, scale, eps=1e-5):
  return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * scale


def silu(x):
  return x / (1 + np.exp(-x))


def softmax(x):
  weight = np.exp(x - x.max(-1, keepdims=True))
  return weight / weight.sum(-1, keepdims=True)


def rotate(x, positions, theta, factor=1):
  """Rotary positions of x [T, H, D], halves as in Llama."""
  half = x.shape[-1] // 2
  angle = positions[:, None] * theta ** (-np.arange(half) / half) / factor
  sin, cos = np.sin(angle)[:, None], np.cos(angle)[:, None]
  a, b = x[..., :half], x[..., half:]
  return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)


def attend(q, k, v, sees):
  """Attention [T, H * D] of q [T, H, D] over k and v [S, G, D], in groups.

  `sees` [T, S] is true where a place is seen.
  """
  k, v = (np.repeat(x, q.shape[1] // x.shape[1], 1) for x in (k, v))
  scores = np.einsum('thd,shd->hts', q, k) / np.sqrt(q.shape[-1])
  weights = softmax(np.where(sees, scores, -np.inf))
  return np.einsum('hts,shd->thd', weights, v).reshape(len(q), -1)


def gated(own, x):
  """The MLP of a layer."""
  x = silu(x @ own['mlp.gate_proj'].T) * (x @ own['mlp.up_proj'].T)
  return x @ own['mlp.down_proj'].T


def layer(own, x, reads, heads, theta, eps=1e-5, factor=1):
  """The stream [T, E] after a layer of a Llama or a Qwen.

  Args:
    own: its tensors, of which biases and norms of heads may be left out.
    x: [T, E] the stream before it.
    reads: [T, ...] what its attention reads.
    heads: how many there are of queries.
    theta: the base of rotary positions, which `factor` stretches.
    eps: of its norms.
    factor: of the positions.
  """
  at, a = np.arange(len(reads)), below(own, 'self_attn.')
  q, k, v = (
    reads @ a[f'{name}_proj'].T + a.get(f'{name}_proj.bias', 0)
    for name in 'qkv'
  )
  q, k, v = (y.reshape(len(at), -1, q.shape[1] // heads) for y in (q, k, v))
  if 'q_norm' in a:
    q, k = rms_norm(q, a['q_norm'], eps), rms_norm(k, a['k_norm'], eps)
  q, k = (rotate(y, at, theta, factor) for y in (q, k))
  x = x + attend(q, k, v, np.tri(len(at), dtype=bool)) @ a['o_proj'].T
  return x + gated(own, rms_norm(x, own['post_attention_layernorm'], eps))


def below(tensors, prefix):
  """The tensors below a prefix, without it and without `.weight`."""
  return {
    name.split(prefix, 1)[1].removesuffix('.weight'): x
    for name, x in tensors.items()
    if prefix in name
  }


def convolved(own, name, x):
  """A block [b, E] after the first convolution of a part, and the second."""
  if f'{name}.base_kernel' not in own:
    return x, lambda y: y
  base = own[f'{name}.base_kernel']  # [2, taps, E]
  each = own[f'{name}.kernel_projection'] @ x.T
  each = each.T.reshape(len(x), 2, base.shape[1], -1)
  group = x.shape[1] // each.shape[-1]

  def along(y, which):
    out = np.zeros_like(y)
    for t in range(len(y)):
      for o in range(min(t + 1, base.shape[1])):
        for c in range(y.shape[1]):
          kernel = base[which, o, c] + each[t, which, o, c // group]
          out[t, c] += kernel * y[t - o, c]
    return out

  return along(x, 0), lambda y: along(y, 1)


def dflash(tensors, config, features, block, begin):
  """What the target's head reads [b, E] after a block of embeddings.

  Tensors have their names in `model.safetensors` of z-lab.

  Args:
    tensors: of the head.
    config: as published; `window`, tokens that are seen to either side.
    features: [begin, len(taps) * E] of the target, of all tokens before.
    block: [b, E] embeddings of the last token and of masks.
    begin: position of the block.
  """
  eps, theta = config['rms_norm_eps'], config['rope_theta']
  context = features @ tensors['fc.weight'].T
  context = rms_norm(context, tensors['hidden_norm.weight'], eps)
  at = begin + np.arange(len(block))
  everywhere = np.arange(begin + len(block))
  x = block
  for i in range(config['num_hidden_layers']):
    own = below(tensors, f'layers.{i}.')
    y = rms_norm(x, own['input_layernorm'], eps)
    y, behind = convolved(own, 'attention_conv', y)
    read = np.concatenate([context, y])

    def heads(x, name, own=own):
      x = x @ own[f'self_attn.{name}_proj'].T
      return x.reshape(len(x), -1, config['head_dim'])

    q = rms_norm(heads(y, 'q'), own['self_attn.q_norm'], eps)
    k = rms_norm(heads(read, 'k'), own['self_attn.k_norm'], eps)
    q, k = rotate(q, at, theta), rotate(k, everywhere, theta)
    near = np.abs(at[:, None] - everywhere) < config.get('window', np.inf)
    y = attend(q, k, heads(read, 'v'), near)
    x = x + behind(y @ own['self_attn.o_proj'].T)
    y = rms_norm(x, own['post_attention_layernorm'], eps)
    y, behind = convolved(own, 'mlp_conv', y)
    x = x + behind(gated(own, y))
  return rms_norm(x, tensors['norm.weight'], eps)


def sigmoid(x):
  return 1 / (1 + np.exp(-x))


def dspark(tensors, logits, hidden, tokens):
  """Logits [K, V_d] of places, and how likely each is accepted [K], or None.

  `tokens` [K] stand before the places; names are those of speculators.
  """
  own = {k.removeprefix('markov_head.'): x for k, x in tensors.items()}
  rank = own['markov_w1.weight'].shape[1]
  state, said, sure = np.zeros(rank), [], []
  for place, h, token in zip(logits, hidden, tokens, strict=True):
    e = y = own['markov_w1.weight'][token]
    if 'gate_proj.weight' in own:
      made = own['gate_proj.weight'] @ np.concatenate([h, e])
      y = sigmoid(made + own['gate_proj.bias']) * e
    if 'joint_proj.weight' in own:
      made = own['joint_proj.weight'] @ np.concatenate([state, e, h])
      keep, new, out = np.split(made + own['joint_proj.bias'], 3)
      state = sigmoid(keep) * state + sigmoid(-keep) * np.tanh(new)
      y = np.tanh(out)
    said.append(place + own['markov_w2.weight'] @ y)
    if (weight := tensors.get('confidence_head.proj.weight')) is not None:
      read = np.concatenate([h, e])[: weight.shape[1]]
      made = weight @ read + tensors['confidence_head.proj.bias']
      sure.append(sigmoid(made[0]))
  return np.stack(said), np.array(sure) if sure else None


def llama(tensors, config, tokens):
  """Logits [T, V] of a Llama or Qwen after every token of a text [T]."""
  eps, heads = config['rms_norm_eps'], config['num_attention_heads']
  x = tensors['model.embed_tokens.weight'][tokens]
  for i in range(config['num_hidden_layers']):
    own = below(tensors, f'layers.{i}.')
    y = rms_norm(x, own['input_layernorm'], eps)
    x = layer(own, x, y, heads, config['rope_theta'], eps)
  return (
    rms_norm(x, tensors['model.norm.weight'], eps) @ tensors['lm_head.weight'].T
  )


def domino(tensors, logits, hidden, embedded, plain):
  """Logits [K, V] of places after embeddings [K, E] of the tokens before.

  The recurrent layer is that of torch: reset, update, new. The first `plain`
  places are not corrected. Names are those of SpecForge.
  """
  into, over = (tensors[f'prefix_gru.weight_{x}_l0'] for x in ('ih', 'hh'))
  state, said = np.zeros(over.shape[1]), []
  for k, (place, h, e) in enumerate(zip(logits, hidden, embedded, strict=True)):
    (r, z, n), (r_old, z_old, n_old) = (
      np.split(made, 3) for made in (into @ e, over @ state)
    )
    keep = sigmoid(z + z_old)
    state = keep * state + (1 - keep) * np.tanh(n + sigmoid(r + r_old) * n_old)
    y = silu(tensors['embed_proj.0.weight'] @ np.concatenate([h, state]))
    said.append(place + (k >= plain) * (tensors['embed_proj.2.weight'] @ y))
  return np.stack(said)


def dflash2(tensors, logits, hidden, tokens, candidates):
  """Logits [K, V] of places, minus infinity where no candidate is.

  `tokens` [K] stand before the places; names are those of the authors.
  """
  own = {k.removeprefix('candidate_selector.'): x for k, x in tensors.items()}
  said = np.full(logits.shape, -np.inf)
  for k, token in enumerate(tokens):
    read = own['hidden_projection.weight'] @ hidden[k]
    read = read * own['predecessor_codebook'][token]
    for c in np.argsort(-logits[k])[:candidates]:
      said[k, c] = logits[k, c] + read @ own['successor_codebook'][c]
  return said


def medusa(tensors, feature):
  """Logits [K, V] of all heads after the target's normed feature [E].

  Names are those of `medusa_lm_head.pt`.
  """
  said = []
  while f'{len(said)}.1.weight' in tensors:
    i = len(said)
    y = feature @ tensors[f'{i}.0.linear.weight'].T
    y = feature + silu(y + tensors[f'{i}.0.linear.bias'])
    said.append(y @ tensors[f'{i}.1.weight'].T)
  return np.stack(said)
