"""The engine contract: our command lines, judged by the engines' own argument parsers on a machine without a GPU."""
