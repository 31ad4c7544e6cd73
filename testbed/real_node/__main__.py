"""``run -- COMMAND`` runs a command where a real node can run; ``images`` builds the node's images and prints their sizes; ``check`` says
whether a real node can run on this machine."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from testbed.binaries import BinaryError
from testbed.images import ImageError
from testbed.real_node import isolation, node_images


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command. Returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m testbed.real_node", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("run", "inside"):
        commands.add_parser(name).add_argument("argv", nargs="+", metavar="-- COMMAND")
    commands.add_parser("images").add_argument("--quiet", action="store_true", help="only the path of their layout")
    commands.add_parser("check")
    parsed = parser.parse_args(arguments)
    try:
        if parsed.command == "run":
            return isolation.run(parsed.argv)
        if parsed.command == "inside":
            return isolation.inside(parsed.argv)
        isolation.check()
        if parsed.command == "images":
            found = node_images.layout()
            print(found)
            for size in [] if parsed.quiet else node_images.measured(found):
                print(f"{size.name}\t{size.compressed / 1e6:.0f} MB compressed\t{size.unpacked / 1e6:.0f} MB unpacked")
    except (isolation.IsolationError, ImageError, BinaryError) as error:
        print(f"real node: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
