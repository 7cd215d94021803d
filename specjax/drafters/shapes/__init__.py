"""Shapes of a draft, and policies of its length.

A drafter that goes from token to token is a `step_model.Walker`; each shape
makes a drafter of any walker:

  chain         one token after the other, as long as a policy wants
  static_tree   a fixed tree, drawn level by level
  dynamic_tree  the nodes most likely to be accepted, chosen anew every step

`shape.build` picks one by options, and `stateless` makes a drafter that
remembers nothing. A method is a file of `specjax.drafters`.
"""
