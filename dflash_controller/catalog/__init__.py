"""Known targets and the drafters trained for them."""

from dflash_controller.catalog.catalog import Catalog, Pair

__all__ = ["Catalog", "Pair"]
