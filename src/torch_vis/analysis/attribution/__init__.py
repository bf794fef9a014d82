"""What a run's output is due to: gradients and occlusion, attention weights, logits layer by layer, edges and paths.

All of it runs the recorded operations again (``replay.differentiable``), so that it needs no hooks and no module to
hook: functions, modules that are called several times and views are what they were in the run.
"""
