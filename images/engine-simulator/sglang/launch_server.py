"""Stands in for SGLang's server module, so that the operator's own command starts the simulator, which is given that command."""

import os
import sys

SIMULATOR = ["python3", "-m", "testbed.simulator", "serve", "--"]
os.execvp("python3", [*SIMULATOR, "python3", *sys.orig_argv[1:]])
