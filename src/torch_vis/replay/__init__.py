"""Running a recorded graph again on its tensors."""
