"""What a person sees of a run: metric records, TensorBoard, console lines, the log."""
