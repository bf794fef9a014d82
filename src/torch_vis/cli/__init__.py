"""The command line, ``torch-vis``: one file per command, each with its options, its examples and what it does.

``commands.py`` is the table of them. A command's file has ``add_options(parser)``, ``EXAMPLES`` and
``run(options, out)``, which returns the exit code; none imports torch before it runs.

Exit codes: 0 all is well; 1 a finding (a check that failed, graph breaks, a difference); 2 the call cannot work as
written (bad option, missing file or package, a model that cannot be made or does not take the inputs); 130
interrupted. ``run`` ends with the script's own code, and with 2 if that is 0 and nothing could be written.
"""
