"""Parts of inner loops.

Variants of an algorithm enter it as values made here, never as branches on flags: a
policy head (`heads`), twin critics (`critics`), normalizers (`normalization`), a replay
buffer (`replay`). A `Config` names a variant by a flag or a string, `make` turns that
into a value once, and the loss, the rollout and the update call the value.
"""
