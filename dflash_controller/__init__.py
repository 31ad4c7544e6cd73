"""DFlash speculative decoding on Kubernetes: the library behind the operator.

Layers point one way: ``api <- catalog <- engines <- render, planning <- cluster, observe <- runtime``.
The layers up to ``planning`` are pure: they read no clock, file, socket or environment.
"""

__version__ = "0.1.0"
