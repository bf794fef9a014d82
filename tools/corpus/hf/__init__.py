"""Every architecture that transformers can build from a tiny configuration."""

from tools.corpus.hf.architectures import makers, names, prepare

__all__ = ["makers", "names", "prepare"]
