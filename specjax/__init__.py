"""Speculative decoding in JAX. `types` is the contract page."""
