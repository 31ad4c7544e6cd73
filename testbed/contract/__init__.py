"""The engine contract: the engines' own argument parsers check our command lines on a machine without a GPU."""
