"""How the documentation site is built: `make docs`, in which a warning is an error."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "extension"))

import torch_vis

project = "torch_vis"
version = release = torch_vis.__version__
author = "the torch_vis developers"
copyright = author

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx_copybutton",
    "reference",
    "gallery",
    "kernels",
    "links",
]
exclude_patterns = ["extension", "gallery_pages", "_build"]
nitpicky = False

# Guides are notebooks in Markdown: every cell is run when the site is built, and one that raises ends the build.
nb_execution_mode = "force"
nb_execution_in_temp = True
nb_execution_timeout = 300
nb_execution_raise_on_error = True
nb_merge_streams = True
# What libraries say on standard error (progress, deprecations of their own) is not part of a guide.
nb_output_stderr = "remove"
myst_enable_extensions = ["colon_fence", "deflist", "attrs_inline"]
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
autodoc_class_signature = "separated"
python_use_unqualified_type_names = True
# A name is shown as it is used; where a class is defined is of no use to a reader.
add_module_names = False

html_theme = "furo"
html_title = f"torch_vis {release}"
html_static_path = ["static"]
# Written by extension/gallery.py, before anything is copied.
(Path(__file__).parent / "gallery_pages").mkdir(exist_ok=True)
html_extra_path = ["gallery_pages"]
html_css_files = ["site.css"]
html_show_sourcelink = False
html_copy_source = False
# The site opens from disk: nothing is fetched when it is read.
html_theme_options = {"navigation_with_keys": True}
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
# the builtin ``type`` in a signature is no attribute of that name, of which there are several
suppress_warnings = ["ref.python"]
