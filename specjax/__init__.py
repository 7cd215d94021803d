"""Speculative decoding in JAX. `types` is the contract page."""

__version__ = '0.1.0'
