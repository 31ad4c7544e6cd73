"""Runs first in the plugin of krew: makes the environment that of the user's machine again, for TLS and for other programs.

PyInstaller's loader puts the plugin's own libraries in front of the system's (LD_LIBRARY_PATH). Programs that a kubeconfig names for its
credentials would load them. And the plugin's OpenSSL looks for certificates where the machine has them on which it was built.
"""

from __future__ import annotations

import os
import sys
from collections.abc import MutableMapping

LIBRARIES = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")
BUNDLES = (
    "/etc/ssl/certs/ca-certificates.crt",  # Debian, Ubuntu, Arch, Alpine
    "/etc/pki/tls/certs/ca-bundle.crt",  # Fedora, RHEL
    "/etc/ssl/ca-bundle.pem",  # openSUSE
    "/etc/ssl/cert.pem",  # macOS, Alpine
)
"""Files with the system's certificates."""


def restore(environment: MutableMapping[str, str]) -> None:
    """Gives the variables of libraries back the values that they had before the loader changed them."""
    for name in LIBRARIES:
        before = environment.pop(f"{name}_ORIG", None)
        if before:
            environment[name] = before
        else:
            environment.pop(name, None)


def certificates(environment: MutableMapping[str, str]) -> None:
    """Names the system's certificates, unless the user names some."""
    if "SSL_CERT_FILE" not in environment and "SSL_CERT_DIR" not in environment:
        found = next(filter(os.path.isfile, BUNDLES), None)
        if found:
            environment["SSL_CERT_FILE"] = found


if getattr(sys, "frozen", False):
    restore(os.environ)
    certificates(os.environ)
