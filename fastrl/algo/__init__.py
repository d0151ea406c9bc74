"""Pure functions on tensors: V-trace and losses. No processes, no files."""
