"""Encoders, action distributions and the policy that joins them.

Nothing is imported here: `config` and `noise` must stay importable without torch.
"""
